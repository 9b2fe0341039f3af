"""The tile sizes of the VAE's Triton convolution, chosen by a GPU's shared memory."""

from __future__ import annotations

from typing import NamedTuple

from .card import Card

LARGE_TILE_MEMORY = 200_000
"""The shared memory in bytes that a GPU must have for large tiles, which are loaded by TMA."""


class Tile(NamedTuple):
    """The part of a convolution's result that one Triton program computes. A channel count is split into two powers of
    two, such as 96 = 64 + 32, because Triton needs powers of two.

    pixels: the number of pixels of the result.
    out, out_rest: the number of output channels is out + out_rest; out_rest may be 0.
    channels, channels_rest: one step reads channels + channels_rest input channels; channels_rest may be 0.
    stages: the number of pipelined loads.
    by_tma: whether TMA descriptors, not pointers, load the inputs.
    fp16_sums: whether products accumulate in fp16 before they are added in fp32.
    """

    pixels: int
    out: int
    out_rest: int
    channels: int
    channels_rest: int
    warps: int
    stages: int
    by_tma: bool
    fp16_sums: bool = False


def tile_of(card: Card, channels: int, out: int) -> Tile:
    """Return the tile of one Triton program for a convolution from `channels` to `out` channels on the GPU `card`. GPUs
    with at least LARGE_TILE_MEMORY bytes of shared memory get larger tiles."""
    outs = next((parts for parts in ((128, 64), (64, 32), (64, 0), (32, 0)) if out % sum(parts) == 0), (16, 0))
    deep = 32 if channels % 32 == 0 else 16
    if card.shared_memory < LARGE_TILE_MEMORY:
        outs = (64, 0) if outs == (128, 64) else outs
        if card.maker != "nvidia":
            return Tile(128, *outs, deep, 0, 8, 4, by_tma=False)
        half = card.fast_fp16_sums and outs[0] > 16
        if outs == (64, 0) and channels % 64 == 0:
            return Tile(128, *outs, 64, 0, 4, 3, by_tma=False, fp16_sums=half)
        return Tile(128, *outs, deep, 0, 4, 4, by_tma=False, fp16_sums=half)
    parts = (64, 0) if channels % 64 == 0 else (64, 32) if channels % 96 == 0 else (deep, 0)
    if channels > 192 and out % 192 == 0:
        return Tile(128, *outs, *parts, 8, 4, by_tma=True)
    return Tile(256, *outs, *parts, 8, 3, by_tma=True)
