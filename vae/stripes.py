"""The stripes of columns or rows into which each frame is split, so that several processes decode one video."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..options import CELL

HALO = {2: 12, 4: 10, 8: 7}
"""The margin around a stripe that the decoder needs, in pixels, at 2, 4 and 8 times the latent's resolution.

For each 3x3 convolution that follows, the margin is one pixel wider. Six are in the residual blocks of each resolution,
one follows each doubling, and one is at the end. A margin of n pixels after a doubling needs n / 2 before it, rounded
up.
"""


@dataclass(frozen=True)
class Stripe:
    """A stripe of each frame: the latent pixels from `start` to `stop` (exclusive) in the dimension `dim`. `dim` is -1
    for a stripe of columns, -2 for rows. `length` is the full frame's number of latent pixels in `dim`."""

    start: int
    stop: int
    length: int
    dim: int

    @classmethod
    def of(cls, height: int, width: int, index: int, count: int) -> Stripe:
        """Return stripe number `index` (from 0) of `count` stripes of a frame with `height` x `width` latent pixels.

        The longer side is divided as evenly as possible. If it has fewer pixels than `count`, some stripes are empty.
        """
        length, dim = (width, -1) if width >= height else (height, -2)
        return cls(length * index // count, length * (index + 1) // count, length, dim)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of this stripe of a frame with `height` x `width` latent pixels."""
        own = self.stop - self.start
        return (height, own) if self.dim == -1 else (own, width)

    def enter(self, x: Tensor, scale: int) -> Tensor:
        """Return the part of x [..., h, w] that the decoder needs for this stripe and its margin, as a view.

        `scale` is the resolution of x relative to the latent: 2, 4 or 8. At scale 2, x is the full frame. At scale 4 or
        8, x is the result of this method for half the scale, after the decoder has doubled its size.
        """
        first, end = self._needed(scale)
        before = 0 if scale == min(HALO) else 2 * self._needed(scale // 2)[0]
        return x.narrow(self.dim, first - before, end - first)

    def own(self, picture: Tensor) -> Tensor:
        """Return the pixels of the stripe from a decoded stripe with its margin, `picture` [..., h, w]."""
        return picture.narrow(self.dim, CELL * self.start - self._needed(CELL)[0], CELL * (self.stop - self.start))

    def within(self, frames: Tensor) -> Tensor:
        """Return the pixels of this stripe from full frames [F, H, W, 3], as a view."""
        return frames.narrow(self.dim - 1, CELL * self.start, CELL * (self.stop - self.start))

    def _needed(self, scale: int) -> tuple[int, int]:
        halo = HALO[scale]
        return max(0, scale * self.start - halo), min(scale * self.length, scale * self.stop + halo)
