"""The tile sizes of the VAE's Triton convolution, chosen by a GPU's shared memory."""

from __future__ import annotations

from typing import NamedTuple

from .card import Card

WIDE = 200_000
"""A GPU with at least this many bytes of shared memory per Triton program, such as H100, H200 and B200, gets the large
tiles, which TMA loads."""


class Tile(NamedTuple):
    """The tile of a convolution's result that one Triton program computes: `pixels` rows and `out` + `out_rest` output
    channels.

    pixels: the rows of the result, one for each pixel.
    out, out_rest: the output channels as two powers of two, such as 128 and 64 for 192, because a Triton block's size
    is a power of two. `out_rest` may be 0.
    channels, channels_rest: the input channels that one step processes, in the same form.
    warps, stages: Triton's number of warps, and of pipelined loads.
    described: whether operands are loaded by descriptor (TMA), not by pointers.
    half: whether products are summed in fp16 over the input channels of one window pixel, and these sums in fp32. If
    False, all sums are in fp32. If True, `channels_rest` is 0.
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

    - Large tiles are the fastest of those timed on an H100.
    - NVIDIA's small tiles were also timed on an H100, with the instructions that older GPUs have too (docs/cards.md).
      Two tiles fit into 99 KB of shared memory.
    - GeForce GPUs sum in fp16 first (`half`). The relative RMS error is at most 0.0008 (-62 dB).
    - AMD's tiles fit into 64 KB of shared memory. They were chosen by the output of Triton's compiler, without timing.
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
