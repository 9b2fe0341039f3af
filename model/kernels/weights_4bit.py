"""Triton kernels that decode 4-bit weights in fp32, with the same results as plain torch."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from ..ops.matrix_8bit import LARGEST, EightBit
from .launch import Kernel

DECODED_AT_ONCE = 2048
"""The number of 4-bit values that one Triton program decodes."""
RECODED_AT_ONCE = 1024
"""The number of values that one Triton program converts to 8 bits in one step."""

TYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.int8: tl.int8,
    torch.float8_e4m3fn: tl.float8e4nv,
}
PAIRS = {1: torch.int16, 2: torch.int32, 4: torch.int64}
"""The integer dtype that holds two values, by the size of a value in bytes."""


@triton.jit
def _scales(
    absmax_ptr,
    nested_absmax_ptr,
    nested_code_ptr,
    offset_ptr,
    block,
    inside,
    NESTED_BLOCKSIZE: tl.constexpr,
):
    """Return the fp32 scales of the weight's blocks with the indices `block`, where the mask `inside` is true. With
    double quantization (`nested_absmax_ptr` not None), decode the stored 8-bit scales."""
    scale = tl.load(absmax_ptr + block, mask=inside, other=0)
    if nested_absmax_ptr is not None:
        outer = tl.load(nested_absmax_ptr + block // NESTED_BLOCKSIZE, mask=inside, other=0.0)
        scale = tl.load(nested_code_ptr + scale.to(tl.int32)) * outer + tl.load(offset_ptr)
    return scale


@triton.jit
def _pair(first, second, kind: tl.constexpr):
    """Return two fp32 numbers, converted to `kind`, as one integer with the first number in its lower half."""
    if kind == tl.float8e4nv:  # one instruction; Triton's own conversion leaves a neighbour's bits in the upper half
        pair = tl.inline_asm_elementwise(
            "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", "=h,f,f", [first, second], tl.int16, is_pure=True, pack=1
        )
    elif kind == tl.int8:
        first, second = libdevice.nearbyint(first).to(tl.int32), libdevice.nearbyint(second).to(tl.int32)
        pair = ((first & 255) | (second << 8)).to(tl.int16)
    elif kind.primitive_bitwidth == 16:
        first, second = first.to(kind).to(tl.uint16, bitcast=True), second.to(kind).to(tl.uint16, bitcast=True)
        pair = (first.to(tl.uint32) | (second.to(tl.uint32) << 16)).to(tl.int32, bitcast=True)
    else:
        first, second = first.to(tl.uint32, bitcast=True), second.to(tl.uint32, bitcast=True)
        pair = (first.to(tl.uint64) | (second.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)
    return pair


@triton.jit
def _write(
    out_ptr, packed_ptr, code_ptr, scales, bytes_left, HALF: tl.constexpr, TYPE: tl.constexpr, MASKED: tl.constexpr
):
    """Decode packed 4-bit values by the table at `code_ptr`, multiply them by `scales`, and store them in the dtype
    TYPE. Each scale belongs to HALF packed bytes. If MASKED, stop after `bytes_left` bytes."""
    at = tl.arange(0, scales.shape[0])[:, None] * HALF + tl.arange(0, HALF)[None, :]
    if MASKED:
        packed = tl.load(packed_ptr + at, mask=at < bytes_left, other=0).to(tl.int32)
    else:
        packed = tl.load(packed_ptr + at).to(tl.int32)
    first, second = tl.load(code_ptr + (packed >> 4)), tl.load(code_ptr + (packed & 15))
    pairs = _pair(first * scales[:, None], second * scales[:, None], TYPE)
    if MASKED:
        tl.store(out_ptr + at, pairs, mask=at < bytes_left)
    else:
        tl.store(out_ptr + at, pairs)


@Kernel
def _decode(
    out_ptr,
    packed_ptr,
    code_ptr,
    absmax_ptr,
    nested_absmax_ptr,
    nested_code_ptr,
    offset_ptr,
    byte_count,
    BLOCKS: tl.constexpr,
    HALF: tl.constexpr,
    TYPE: tl.constexpr,
    MASKED: tl.constexpr,
    NESTED_BLOCKSIZE: tl.constexpr,
):
    """The kernel of `decode_4bit`. A program decodes BLOCKS blocks of HALF bytes, with two weights in each byte."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    inside = block * HALF < byte_count
    scales = _scales(absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, block, inside, NESTED_BLOCKSIZE)
    first = tl.program_id(0).to(tl.int64) * BLOCKS * HALF
    _write(out_ptr + first, packed_ptr + first, code_ptr, scales, byte_count - first, HALF, TYPE, MASKED)


@Kernel
def _recode(
    out_ptr,
    row_scales_ptr,
    packed_ptr,
    code_ptr,
    absmax_ptr,
    nested_absmax_ptr,
    nested_code_ptr,
    offset_ptr,
    row_blocks,
    ROW_BLOCKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    HALF: tl.constexpr,
    TYPE: tl.constexpr,
    LARGEST: tl.constexpr,
    NESTED_BLOCKSIZE: tl.constexpr,
):
    """The kernel of `recode_4bit`. A program recodes one row of `row_blocks` quantization blocks, BLOCKS at a time.
    ROW_BLOCKS is `row_blocks` rounded up for `tl.arange`."""
    first = tl.program_id(0).to(tl.int64) * row_blocks
    inside = tl.arange(0, ROW_BLOCKS) < row_blocks
    block = first + tl.arange(0, ROW_BLOCKS)
    scales = _scales(absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, block, inside, NESTED_BLOCKSIZE)
    largest = tl.max(tl.where(inside, tl.abs(scales), 0.0), axis=0)
    largest *= tl.max(tl.abs(tl.load(code_ptr + tl.arange(0, 16))), axis=0)
    row_scale = tl.div_rn(tl.maximum(largest, 1e-30), LARGEST)
    tl.store(row_scales_ptr + tl.program_id(0), row_scale)
    factor = tl.div_rn(1.0, row_scale)
    part_block = tl.arange(0, BLOCKS)
    for part in range(0, row_blocks, BLOCKS):
        at, every = first + part + part_block, part_block >= 0  # BLOCKS divides row_blocks
        part_scales = _scales(absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, at, every, NESTED_BLOCKSIZE)
        byte = (first + part) * HALF
        _write(out_ptr + byte, packed_ptr + byte, code_ptr, part_scales * factor, 0, HALF, TYPE, False)


def decode_4bit(packed: Tensor, scales: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a 4-bit weight of `shape`, decoded to `dtype`. `packed` (uint8) holds two values in a byte. `scales`, a
    `codec.Scales`, has the table of 16 values and each block's scale."""
    count = math.prod(shape)
    out = torch.empty(count + count % 2, dtype=dtype, device=packed.device)
    blocks = math.gcd(-(-count // scales.blocksize), DECODED_AT_ONCE // scales.blocksize or 1)
    with torch.cuda.device_of(packed):
        _decode[(triton.cdiv(count, blocks * scales.blocksize),)](
            out.view(PAIRS[dtype.itemsize]),
            packed,
            *_tables(scales),
            len(out) // 2,
            BLOCKS=blocks,
            TYPE=TYPES[dtype],
            MASKED=count % scales.blocksize != 0,
            num_warps=2,
            **_settings(scales),
        )
    return out[:count].view(shape)


def recode_4bit(packed: Tensor, scales: Any, shape: tuple[int, ...], dtype: torch.dtype) -> EightBit:
    """Return a 4-bit weight of `shape` [out, in] in the 8-bit `dtype`, with a scale for each row. Raise RuntimeError
    for float8 on AMD's GPUs."""
    if dtype == torch.float8_e4m3fn and torch.version.hip is not None:
        raise RuntimeError("float8 weights are made by an instruction that AMD's GPUs lack")
    rows, width = shape
    values = torch.empty(shape, dtype=dtype, device=packed.device)
    row_scales = torch.empty(rows, 1, dtype=torch.float32, device=packed.device)
    row_blocks = width // scales.blocksize
    with torch.cuda.device_of(packed):
        _recode[(rows,)](
            values.view(torch.int16),
            row_scales,
            packed,
            *_tables(scales),
            row_blocks,
            ROW_BLOCKS=triton.next_power_of_2(row_blocks),
            TYPE=TYPES[dtype],
            LARGEST=LARGEST[dtype],
            BLOCKS=math.gcd(row_blocks, RECODED_AT_ONCE // scales.blocksize or 1),
            num_warps=1,
            **_settings(scales),
        )
    return EightBit(values, row_scales)


def _tables(scales: Any) -> tuple[Tensor | None, ...]:
    return scales.code, scales.absmax, scales.nested_absmax, scales.nested_code, scales.offset


def _settings(scales: Any) -> dict[str, Any]:
    sizes = {"HALF": scales.blocksize // 2, "NESTED_BLOCKSIZE": scales.nested_blocksize}
    return {**sizes, "enable_fp_fusion": False}
