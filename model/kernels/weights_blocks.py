"""A Triton kernel that decodes the block formats of GGUF files, with the same results as plain torch."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized.ggml import BLOCKS
from .launch import Kernel

DECODED_AT_ONCE = 1024
"""The number of values that one Triton program decodes."""


@triton.jit
def _byte(start, at):
    return tl.load(start + at).to(tl.int32)


@triton.jit
def _signed(start, at):
    """Return the byte number `at` of the block at `start` as a signed number."""
    return (_byte(start, at) ^ 128) - 128


@triton.jit
def _half(start, at):
    """Return the float16 number at the even offset `at` of the block at `start`, as fp32."""
    return (_byte(start, at) | (_byte(start, at + 1) << 8)).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _bits(start, at, value, BITS: tl.constexpr, GROUP: tl.constexpr):
    """Return the BITS-bit integers with the indices `value` from a packed array, at byte `at` of the block at the
    pointer `start`. One byte packs the integers i, i + GROUP, i + 2 * GROUP and so on, from its lowest bit on."""
    packed = _byte(start, at + value // (GROUP * 8 // BITS) * GROUP + value % GROUP)
    return (packed >> (value // GROUP % (8 // BITS) * BITS)) & ((1 << BITS) - 1)


@triton.jit
def _decode_32(start, i, KIND: tl.constexpr, HAS_OFFSET: tl.constexpr):
    """Return the decoded values at the indices `i` of a block of 32 values. `start` points to the block's first byte.
    KIND is the GGUF format, such as "Q4_0". HAS_OFFSET is true if the block stores an offset."""
    if KIND == "Q8_0":
        value = _signed(start, 2 + i)
    elif KIND == "Q4_0":
        value = _bits(start, 2, i, 4, 16) - 8
    elif KIND == "Q4_1":
        value = _bits(start, 4, i, 4, 16)
    elif KIND == "Q5_0":
        value = (_bits(start, 6, i, 4, 16) | (((_byte(start, 2 + i // 8) >> (i % 8)) & 1) << 4)) - 16
    else:
        value = _bits(start, 8, i, 4, 16) | (((_byte(start, 4 + i // 8) >> (i % 8)) & 1) << 4)
    made = value.to(tl.float32) * _half(start, 0)
    if HAS_OFFSET:
        made = made + _half(start, 2)
    return made


@triton.jit
def _six_bit_number(start, group, first, second, SHIFT: tl.constexpr):
    """Return the 6-bit integers `group` (0 to 7) of the block at `start`. Bytes from `first` on hold 0 to 3, and the
    high 2 bits of 4 to 7. Bytes from `second` on hold the low 4 bits, from bit SHIFT on."""
    low = _byte(start, first + group % 4)
    rest = (_byte(start, second + group % 4) >> SHIFT) & 15
    return tl.where(group < 4, low & 63, rest | ((low >> 2) & 48))


@triton.jit
def _decode_256(start, i, KIND: tl.constexpr):
    """Return the decoded values at the indices `i` of a block of 256 values. `start` points to the block's first byte.
    KIND is the GGUF format, such as "Q4_K"."""
    if KIND == "Q2_K":
        scales = _byte(start, i // 16)
        scale = _half(start, 80) * (scales & 15).to(tl.float32)
        offset = _half(start, 82) * (scales >> 4).to(tl.float32)
        made = _bits(start, 16, i, 2, 32).to(tl.float32) * scale - offset
    elif KIND == "Q3_K":
        group = i // 16
        scales = (_bits(start, 96, group, 4, 8) | (_bits(start, 104, group, 2, 4) << 4)) - 32
        value = _bits(start, 32, i, 2, 32) - ((_bits(start, 0, i, 1, 32) ^ 1) << 2)
        made = value.to(tl.float32) * (_half(start, 108) * scales.to(tl.float32))
    elif KIND == "Q6_K":
        value = (_bits(start, 0, i, 4, 64) | (_bits(start, 128, i, 2, 32) << 4)) - 32
        made = value.to(tl.float32) * (_half(start, 208) * _signed(start, 192 + i // 16).to(tl.float32))
    else:
        scale = _half(start, 0) * _six_bit_number(start, i // 32, 4, 12, 0).to(tl.float32)
        offset = _half(start, 2) * _six_bit_number(start, i // 32, 8, 12, 4).to(tl.float32)
        if KIND == "Q4_K":
            value = _bits(start, 16, i, 4, 32)
        else:
            value = _bits(start, 48, i, 4, 32) | (_bits(start, 16, i, 1, 32) << 4)
        made = value.to(tl.float32) * scale - offset
    return made


@Kernel
def _decode(
    out_ptr,
    packed_ptr,
    KIND: tl.constexpr,
    HAS_OFFSET: tl.constexpr,
    VALUES: tl.constexpr,
    NBYTES: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The kernel of `decode_blocks`. A program decodes AT_ONCE values, in blocks of VALUES values and NBYTES bytes."""
    first = tl.program_id(0).to(tl.int64) * AT_ONCE
    at = tl.arange(0, AT_ONCE)
    start = packed_ptr + first // VALUES * NBYTES + at // VALUES * NBYTES
    value = at % VALUES
    made = _decode_32(start, value, KIND, HAS_OFFSET) if VALUES == 32 else _decode_256(start, value, KIND)
    tl.store(out_ptr + first + at, made.to(out_ptr.dtype.element_ty))


def decode_blocks(packed: Tensor, kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a weight of `shape`, decoded to `dtype` from the blocks in `packed` (uint8) with a GGUF format such as
    "Q4_K"."""
    count, block = math.prod(shape), BLOCKS[kind]
    out = torch.empty(shape, dtype=dtype, device=packed.device)
    at_once = math.gcd(count, DECODED_AT_ONCE)
    with torch.cuda.device_of(packed):
        _decode[(count // at_once,)](
            out,
            packed,
            KIND=kind,
            HAS_OFFSET=kind.endswith("_1"),
            VALUES=block.values,
            NBYTES=block.nbytes,
            AT_ONCE=at_once,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out
