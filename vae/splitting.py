"""Splits of frames: overlapping tiles of 256 pixels save memory, and stripes are decoded by several processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from ..options import CELL

TILE, STRIDE = 32, 24  # latent pixels

Corner = tuple[int, int]


@dataclass(frozen=True)
class Tiling:
    """The tiles of a frame with `height` x `width` latent pixels, each identified by its top left latent pixel. `tile`
    is the side of a tile, and `stride` the distance between tiles, in latent pixels."""

    height: int
    width: int
    tile: int
    stride: int

    @classmethod
    def of(cls, height: int, width: int, cut: bool) -> Tiling:
        """Return the tiles of a frame with `height` x `width` latent pixels. There is only one tile if `cut` is False,
        or if the frame is not larger than a tile."""
        if cut and max(height, width) > TILE:
            return cls(height, width, TILE, STRIDE)
        return cls(height, width, max(height, width), max(height, width))

    @property
    def corners(self) -> list[Corner]:
        """The top left latent pixel of each tile, from left to right, then from top to bottom."""
        return list(product(range(0, self.height, self.stride), range(0, self.width, self.stride)))

    def crop(self, image: Tensor, corner: Corner, scale: int = 1) -> Tensor:
        """Return the tile at `corner` (in latent pixels) of an image [..., h, w] at `scale` times the latent's size."""
        (top, left), size = (scale * each for each in corner), scale * self.tile
        return image[..., top : top + size, left : left + size]


@dataclass
class Blender:
    """A blender that joins the overlapping tiles of images. Tiles must be added in the order of `tiling.corners`.

    Several images, each with a number, may be in progress at a time. Overlaps are stored until the tiles to the right
    and below are added.
    """

    tiling: Tiling
    scale: int = 1
    _above: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _left: dict[int, Tensor] = field(default_factory=dict)

    def add(self, image: int, corner: Corner, tile: Tensor) -> tuple[tuple[slice, slice], Tensor]:
        """Add a tile. Return the (rows, columns) of the part of the image that this tile completes, and the pixels
        [..., h, w] of this part. `image` is the image's number, `corner` the tile's top left latent pixel. `tile` is
        blended in place."""
        top, left = corner
        size = self.scale * self.tiling.stride
        overlap = self.scale * (self.tiling.tile - self.tiling.stride)
        if top:
            _fade(self._above[image, left], tile, -2)
        if left:
            _fade(self._left[image], tile, -1)
        if overlap:
            self._above[image, left] = tile[..., -overlap:, :].clone()
            self._left[image] = tile[..., -overlap:].clone()
        own = tile[..., :size, :size]
        top, left = self.scale * top, self.scale * left
        return (slice(top, top + own.shape[-2]), slice(left, left + own.shape[-1])), own


def _fade(before: Tensor, tile: Tensor, dim: int) -> None:
    """Blend the end of the previous tile `before` into the start of `tile`, in place, along the dimension `dim`."""
    extent = min(before.shape[dim], tile.shape[dim])
    share = torch.arange(extent, device=tile.device, dtype=tile.dtype) / extent
    share = share.view(-1, 1) if dim == -2 else share
    first, last = tile.narrow(dim, 0, extent), before.narrow(dim, before.shape[dim] - extent, extent)
    first.copy_(torch.lerp(last, first, share))


HALO = {2: 12, 4: 10, 8: 7}
"""The margin around a stripe that the decoder needs, in pixels, at 2, 4 and 8 times the latent's resolution.

Each 3x3 convolution reads one more pixel on each side. A margin of n pixels after a doubling of the size needs n / 2
before it, rounded up.

- At 8 times: 6 convolutions in residual blocks and one at the end, so 7.
- At 4 times: the convolution after the doubling needs 7 + 1, which is 4 before the doubling. With 6 convolutions in
  residual blocks, 10.
- At 2 times: likewise 10 + 1, which is 6 before the doubling. With 6 more, 12.
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
