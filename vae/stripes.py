"""The stripes of columns or rows into which each frame is split, so that several processes decode one video."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..options import CELL

HALO = {2: 12, 4: 10, 8: 7}
"""The margin around a stripe, in pixels, that the decoder needs at 2, 4 and 8 times the latent's resolution.

Each later 3x3 convolution reads one more pixel at each edge. There are six in the residual blocks of each resolution,
one after each doubling, and one at the end. A margin of n pixels needs n / 2 pixels before the doubling, rounded up.
"""


@dataclass(frozen=True)
class Stripe:
    """A stripe of each frame: the latent pixels from `start` to `stop` (exclusive) in the dimension `dim`.

    `dim` is -1 for a stripe of columns, -2 for a stripe of rows. `length` is the frame's number of latent pixels in
    this dimension.
    """

    start: int
    stop: int
    length: int
    dim: int

    @classmethod
    def of(cls, height: int, width: int, index: int, count: int) -> Stripe:
        """Return stripe number `index` of `count` equal stripes of a frame with `height` x `width` latent pixels.

        The longer side is divided. If it has fewer pixels than `count`, some stripes are empty.
        """
        length, dim = (width, -1) if width >= height else (height, -2)
        return cls(length * index // count, length * (index + 1) // count, length, dim)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of this stripe in latent pixels. `height` and `width` are the full frame's."""
        own = self.stop - self.start
        return (height, own) if self.dim == -1 else (own, width)

    def enter(self, x: Tensor, scale: int) -> Tensor:
        """Return the part of x [..., h, w] that the decoder needs for this stripe and its margin, as a view.

        x has `scale` times the latent's resolution: 2, 4 or 8. At scale 2, x covers the full frame. At scales 4 and 8,
        x covers the part that was returned at half this scale, and has since been doubled in size.
        """
        first, end = self._needed(scale)
        before = 0 if scale == min(HALO) else 2 * self._needed(scale // 2)[0]
        return x.narrow(self.dim, first - before, end - first)

    def own(self, picture: Tensor) -> Tensor:
        """Return the pixels of the stripe without its margin. `picture` [..., h, w] is the decoded stripe with its
        margin."""
        return picture.narrow(self.dim, CELL * self.start - self._needed(CELL)[0], CELL * (self.stop - self.start))

    def within(self, frames: Tensor) -> Tensor:
        """Return the pixels of this stripe from full frames [F, H, W, 3], as a view."""
        return frames.narrow(self.dim - 1, CELL * self.start, CELL * (self.stop - self.start))

    def _needed(self, scale: int) -> tuple[int, int]:
        halo = HALO[scale]
        return max(0, scale * self.start - halo), min(scale * self.length, scale * self.stop + halo)
