"""The split of frames into overlapping tiles, to save memory, or into stripes for several processes."""

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
    """The tiles of a frame, each identified by its top left pixel. All sizes are in latent pixels."""

    height: int
    width: int
    tile: int
    stride: int

    @classmethod
    def of(cls, height: int, width: int, cut: bool) -> Tiling:
        """Return the tiles of a frame with `height` x `width` latent pixels: a single tile if `cut` is False or a tile
        covers the frame."""
        if cut and max(height, width) > TILE:
            return cls(height, width, TILE, STRIDE)
        return cls(height, width, max(height, width), max(height, width))

    @property
    def corners(self) -> list[Corner]:
        """The top left latent pixel of each tile, row by row."""
        return list(product(range(0, self.height, self.stride), range(0, self.width, self.stride)))

    def crop(self, image: Tensor, corner: Corner, scale: int = 1) -> Tensor:
        """Return a view of one tile of an image [..., h, w]. `corner` is the tile's top left pixel in the latent.
        `scale` is the image's size relative to the latent."""
        (top, left), size = (scale * each for each in corner), scale * self.tile
        return image[..., top : top + size, left : left + size]


@dataclass
class Blender:
    """The state for blending overlapping tiles into images. Each image's tiles must be added in the order of
    `tiling.corners`.

    scale: the images' height and width relative to the latent's.
    """

    tiling: Tiling
    scale: int = 1
    _above: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _left: dict[int, Tensor] = field(default_factory=dict)

    def add(self, index: int, corner: Corner, tile: Tensor) -> tuple[tuple[slice, slice], Tensor]:
        """Blend `tile`, in place, with its image's earlier tiles above and to the left. Return the (rows, columns) of
        the image that are now final, and their pixels [..., h, w]. `index` identifies the image. `corner` is the tile's
        top left latent pixel."""
        top, left = corner
        size = self.scale * self.tiling.stride
        overlap = self.scale * (self.tiling.tile - self.tiling.stride)
        if top:
            _fade(self._above[index, left], tile, -2)
        if left:
            _fade(self._left[index], tile, -1)
        if overlap:
            self._above[index, left] = tile[..., -overlap:, :].clone()
            self._left[index] = tile[..., -overlap:].clone()
        own = tile[..., :size, :size]
        top, left = self.scale * top, self.scale * left
        return (slice(top, top + own.shape[-2]), slice(left, left + own.shape[-1])), own


def _fade(before: Tensor, tile: Tensor, dim: int) -> None:
    """Blend the end of the previous tile into the start of `tile`, in place, along `dim`."""
    extent = min(before.shape[dim], tile.shape[dim])
    share = torch.arange(extent, device=tile.device, dtype=tile.dtype) / extent
    share = share.view(-1, 1) if dim == -2 else share
    first, last = tile.narrow(dim, 0, extent), before.narrow(dim, before.shape[dim] - extent, extent)
    first.copy_(torch.lerp(last, first, share))


HALO = {2: 12, 4: 10, 8: 7}
"""The margin in pixels that the decoder needs around a stripe, at 2, 4 and 8 times the latent's resolution."""


@dataclass(frozen=True)
class Stripe:
    """A stripe of each frame, full in one dimension, and from `start` to `stop` (exclusive) in the other. All sizes are
    in latent pixels.

    dim: the tensor dimension that is split: -1 for a stripe of columns, -2 for rows.
    length: the size of the full frame in `dim`.
    """

    start: int
    stop: int
    length: int
    dim: int

    @classmethod
    def of(cls, height: int, width: int, index: int, count: int) -> Stripe:
        """Return stripe number `index` of `count` nearly equal stripes along the longer side. Sizes are in latent
        pixels; a stripe may be empty."""
        length, dim = (width, -1) if width >= height else (height, -2)
        return cls(length * index // count, length * (index + 1) // count, length, dim)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the stripe's height and width in latent pixels, for a frame with `height` x `width` latent pixels."""
        own = self.stop - self.start
        return (height, own) if self.dim == -1 else (own, width)

    def crop(self, x: Tensor, scale: int) -> Tensor:
        """Return a view of the stripe with its margin. Call this at scale 2, 4 and 8, in this order.

        scale: the resolution of x relative to the latent.
        x: a feature map [..., h, w]. At scale 2, the full frame; at 4 or 8, this method's previous result, upsampled by
        2.
        """
        first, end = self._needed(scale)
        before = 0 if scale == min(HALO) else 2 * self._needed(scale // 2)[0]
        return x.narrow(self.dim, first - before, end - first)

    def own(self, picture: Tensor) -> Tensor:
        """Return a view of a decoded stripe [..., h, w] without its margin."""
        return picture.narrow(self.dim, CELL * self.start - self._needed(CELL)[0], CELL * (self.stop - self.start))

    def within(self, frames: Tensor) -> Tensor:
        """Return a view of the stripe's pixels in full frames [F, H, W, 3]."""
        return frames.narrow(self.dim - 1, CELL * self.start, CELL * (self.stop - self.start))

    def _needed(self, scale: int) -> tuple[int, int]:
        halo = HALO[scale]
        return max(0, scale * self.start - halo), min(scale * self.length, scale * self.stop + halo)
