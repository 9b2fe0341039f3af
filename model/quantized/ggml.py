"""GGUF files' block formats, decoded in plain torch, bit-identical to the gguf library."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

_DECODED_AT_A_TIME = 1 << 22
"""The maximum number of values decoded to float32 at a time."""


class BlockFormat(NamedTuple):
    """The number of values and of bytes in a block."""

    values: int
    nbytes: int


BLOCKS = {
    "Q4_0": BlockFormat(32, 18),
    "Q4_1": BlockFormat(32, 20),
    "Q5_0": BlockFormat(32, 22),
    "Q5_1": BlockFormat(32, 24),
    "Q8_0": BlockFormat(32, 34),
    "Q2_K": BlockFormat(256, 84),
    "Q3_K": BlockFormat(256, 110),
    "Q4_K": BlockFormat(256, 144),
    "Q5_K": BlockFormat(256, 176),
    "Q6_K": BlockFormat(256, 210),
}
"""The number of values and the number of bytes in a block of each supported format, by GGML's name of the format."""


def decode(packed: Tensor, kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Decode GGML blocks in the format `kind` to a weight of `shape` in `dtype`. `packed`: uint8 of any shape."""
    count, block, decode_blocks = math.prod(shape), BLOCKS[kind], _DECODERS[kind]
    blocks = packed.reshape(-1, block.nbytes)
    if count <= _DECODED_AT_A_TIME or torch.compiler.is_compiling():
        return decode_blocks(blocks).reshape(shape).to(dtype)
    out = torch.empty(count, dtype=dtype, device=packed.device)
    parts = blocks.split(_DECODED_AT_A_TIME // block.values)
    for part, target in zip(parts, out.split(_DECODED_AT_A_TIME), strict=True):
        target.copy_(decode_blocks(part).reshape(-1))
    return out.view(shape)


def decode_rows(packed: Tensor, kind: str, shape: tuple[int, ...], rows: Tensor) -> Tensor:
    """Return the rows `rows` (int64 [n]) of a weight of `shape` [out, in], as float32 [n, in]."""
    height, width = shape
    if width % BLOCKS[kind].values:
        return decode(packed, kind, shape, torch.float32)[rows]
    return decode(packed.view(height, -1)[rows], kind, (len(rows), width), torch.float32)


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 number at byte `at` of each block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _unpack(values: Tensor, bits: int, group: int) -> Tensor:
    """Unpack bytes [blocks, n] to `bits`-bit numbers, uint8 [blocks, n * 8 / bits]. For each run of `group` bytes, the
    lowest bits of all bytes come first, then the next higher bits."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=values.device).view(1, 1, -1, 1)
    unpacked = (values.reshape(len(values), -1, 1, group) >> shifts) & ((1 << bits) - 1)
    return unpacked.reshape(len(values), -1)


def _single_bits(values: Tensor) -> Tensor:
    """Unpack bytes, uint8 [blocks, 4], to single bits, uint8 [blocks, 32]. The lowest bit of each byte comes first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=values.device)
    return ((values.unsqueeze(-1) >> shifts) & 1).reshape(len(values), -1)


def _scaled(values: Tensor, scales: Tensor, least: Tensor | None = None) -> Tensor:
    groups = values.float().reshape(len(values), scales.shape[1], -1) * scales.unsqueeze(-1)
    return (groups if least is None else groups - least.unsqueeze(-1)).reshape(len(values), -1)


def _five_bits(blocks: Tensor, at: int) -> Tensor:
    """Return 5-bit values, uint8 [blocks, 32]. Their highest bits are the 4 bytes at `at`; their lower bits follow."""
    return _unpack(blocks[:, at + 4 :], 4, 16) | (_single_bits(blocks[:, at : at + 4]) << 4)


def _q2_k(blocks: Tensor) -> Tensor:
    scales, least = (blocks[:, :16] & 15).float(), (blocks[:, :16] >> 4).float()
    return _scaled(_unpack(blocks[:, 16:80], 2, 32), _half(blocks, 80) * scales, _half(blocks, 82) * least)


def _q3_k(blocks: Tensor) -> Tensor:
    low, high = _unpack(blocks[:, 96:104], 4, 8), _unpack(blocks[:, 104:108], 2, 4)
    scales = ((low | (high << 4)).to(torch.int8) - 32).float()
    lacks = _unpack(blocks[:, :32], 1, 32) ^ 1  # a value is 4 less unless its bit is set
    values = _unpack(blocks[:, 32:96], 2, 32).to(torch.int8) - (lacks << 2).to(torch.int8)
    return _scaled(values, _half(blocks, 108) * scales)


def _six_bit_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales and minima of the groups in Q4_K or Q5_K blocks, float32 [blocks, 8] each."""
    scales, least, rest = blocks[:, 4:16].split(4, 1)
    scales = torch.cat([scales & 63, (rest & 15) | ((scales >> 2) & 48)], 1).float()
    least = torch.cat([least & 63, (rest >> 4) | ((least >> 2) & 48)], 1).float()
    return _half(blocks, 0) * scales, _half(blocks, 2) * least


def _q5_k(blocks: Tensor) -> Tensor:
    values = _unpack(blocks[:, 48:], 4, 32) | (_unpack(blocks[:, 16:48], 1, 32) << 4)
    return _scaled(values, *_six_bit_scales(blocks))


def _q6_k(blocks: Tensor) -> Tensor:
    values = _unpack(blocks[:, :128], 4, 64) | (_unpack(blocks[:, 128:192], 2, 32) << 4)
    return _scaled(values.to(torch.int8) - 32, _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float())


_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q4_0": lambda blocks: _scaled(_unpack(blocks[:, 2:], 4, 16).to(torch.int8) - 8, _half(blocks, 0)),
    "Q4_1": lambda blocks: _scaled(_unpack(blocks[:, 4:], 4, 16), _half(blocks, 0)) + _half(blocks, 2),
    "Q5_0": lambda blocks: _scaled(_five_bits(blocks, 2).to(torch.int8) - 16, _half(blocks, 0)),
    "Q5_1": lambda blocks: _scaled(_five_bits(blocks, 4), _half(blocks, 0)) + _half(blocks, 2),
    "Q8_0": lambda blocks: _scaled(blocks[:, 2:].view(torch.int8), _half(blocks, 0)),
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": lambda blocks: _scaled(_unpack(blocks[:, 16:], 4, 32), *_six_bit_scales(blocks)),
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
