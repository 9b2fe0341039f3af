"""The tile sizes of the VAE's Triton convolution, chosen by a GPU's shared memory."""

from __future__ import annotations

from typing import NamedTuple

from .card import Card

WIDE = 200_000
"""The bytes of shared memory per Triton program from which a GPU gets the large tiles, loaded by TMA."""


class Tile(NamedTuple):
    """The tile of a convolution's result that one Triton program computes.

    pixels: rows of the result.
    out, out_rest: output channels, as a sum of two powers of two.
    channels, channels_rest: input channels of one step, as a sum of powers of two.
    stages: the number of pipelined loads.
    described: whether operands are loaded by descriptor (TMA), not by pointers.
    half: whether each window pixel's products are summed in fp16.
    """

    pixels: int
    out: int
    out_rest: int
    channels: int
    channels_rest: int
    warps: int
    stages: int
    described: bool
    half: bool = False


def tile_of(card: Card, channels: int, out: int) -> Tile:
    """Return the tile for a convolution from `channels` to `out` channels. GPUs with WIDE bytes of shared memory get a
    large tile."""
    outs = next((parts for parts in ((128, 64), (64, 32), (64, 0), (32, 0)) if out % sum(parts) == 0), (16, 0))
    deep = 32 if channels % 32 == 0 else 16
    if card.shared_memory < WIDE:
        outs = (64, 0) if outs == (128, 64) else outs
        if card.maker != "nvidia":
            return Tile(128, *outs, deep, 0, 8, 4, described=False)
        half = card.doubles_half_sums and outs[0] > 16
        if outs == (64, 0) and channels % 64 == 0:
            return Tile(128, *outs, 64, 0, 4, 3, described=False, half=half)
        return Tile(128, *outs, deep, 0, 4, 4, described=False, half=half)
    parts = (64, 0) if channels % 64 == 0 else (64, 32) if channels % 96 == 0 else (deep, 0)
    if channels > 192 and out % 192 == 0:
        return Tile(128, *outs, *parts, 8, 4, described=True)
    return Tile(256, *outs, *parts, 8, 3, described=True)
