"""The tile sizes of the VAE's Triton convolution, chosen by a GPU's shared memory."""

from __future__ import annotations

from typing import NamedTuple

from .card import Card

WIDE = 200_000
"""The smallest shared memory, in bytes, for the large tiles, which TMA loads. H100, H200 and B200 have enough."""


class Tile(NamedTuple):
    """The tile of a convolution's result that one Triton program computes: `pixels` rows and `out` + `out_rest` output
    channels.

    The program processes `channels` + `channels_rest` input channels at a time. All sizes are powers of two, and the
    two with `_rest` may be 0. `warps` is Triton's number of warps, and `stages` its number of pipelined loads. If
    `described`, operands are loaded by descriptor (TMA), else by pointers. If `half`, the products of all channels of a
    pixel are summed in fp16, and these sums in fp32; `channels_rest` is then 0.
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
    """Return the tile for a convolution from `channels` to `out` channels. A GPU with at least WIDE bytes of shared
    memory gets a large tile, other GPUs get a small one.

    Large tiles are the fastest of those tried on an H100 (docs/benchmarks.md). So are NVIDIA's small tiles, by the
    instructions that older GPUs have too; two fit into 99 KB of shared memory. GeForce GPUs sum in fp16 first, which
    gives 62 dB or more. AMD's tiles fit into 64 KB, and were chosen from Triton's compiler's output, without timing.
    """
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
