"""The part of each frame that one of several processes decodes: some of its columns or rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..options import CELL

HALO = {2: 12, 4: 10, 8: 7}
"""The margin in pixels around a stripe that the decoder needs at the start of the doubled, fourfold and eightfold size.

Each of the following convolutions reaches one pixel further: six at a size, one between two sizes, and the last one."""


@dataclass(frozen=True)
class Stripe:
    """The latent pixels from `start` to `stop` of `length`, in dimension -1 (columns) or -2 (rows)."""

    start: int
    stop: int
    length: int
    dim: int

    @classmethod
    def of(cls, height: int, width: int, index: int, count: int) -> Stripe:
        """Return stripe number `index` of `count` of a frame of `height` times `width` latent pixels.

        The frame's longer side is divided. If it has fewer pixels than stripes, some stripes are empty."""
        length, dim = (width, -1) if width >= height else (height, -2)
        return cls(length * index // count, length * (index + 1) // count, length, dim)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the latent rows and columns of the stripe of a frame of this size."""
        own = self.stop - self.start
        return (height, own) if self.dim == -1 else (own, width)

    def enter(self, x: Tensor, scale: int) -> Tensor:
        """Return the part of x [..., h, w] that the decoder needs from here on.

        x has `scale` pixels to a latent pixel. It is the previously needed part, doubled; before the first doubling
        that was the full frame."""
        first, end = self._needed(scale)
        before = 0 if scale == min(HALO) else 2 * self._needed(scale // 2)[0]
        return x.narrow(self.dim, first - before, end - first)

    def own(self, picture: Tensor) -> Tensor:
        """Return the stripe itself, cut out of the decoded image [..., h, w] of the last needed part."""
        return picture.narrow(self.dim, CELL * self.start - self._needed(CELL)[0], CELL * (self.stop - self.start))

    def within(self, frames: Tensor) -> Tensor:
        """Return the stripe of full frames [F, H, W, 3], as a view."""
        return frames.narrow(self.dim - 1, CELL * self.start, CELL * (self.stop - self.start))

    def _needed(self, scale: int) -> tuple[int, int]:
        halo = HALO[scale]
        return max(0, scale * self.start - halo), min(scale * self.length, scale * self.stop + halo)
