"""Triton kernels of 4-bit weights, for the loaders. Imported on GPUs with Triton only.

A program reads the scale of a block once for all of the block's values. Arithmetic is fp32; each product and each sum
is rounded, as in plain torch."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .quantized import LARGEST, EightBit

DECODED_AT_ONCE = 2048
"""Values that a program decodes."""
RECODED_AT_ONCE = 1024
"""Values of a row that a program recodes at once."""


@triton.jit
def _scales(
    absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, block, inside, NESTED: tl.constexpr,
    NESTED_BLOCKSIZE: tl.constexpr,
):  # fmt: skip
    """The scale of each block."""
    scale = tl.load(absmax_ptr + block, mask=inside, other=0)
    if NESTED:
        outer = tl.load(nested_absmax_ptr + block // NESTED_BLOCKSIZE, mask=inside, other=0.0)
        scale = tl.load(nested_code_ptr + scale.to(tl.int32)) * outer + tl.load(offset_ptr)
    return scale


@triton.jit
def _values(packed_ptr, code_ptr, first, end, scales, BLOCKS: tl.constexpr, BLOCKSIZE: tl.constexpr):
    """[BLOCKS, BLOCKSIZE]: the values of these blocks, those from index `end` on being any."""
    byte = first // 2 + tl.arange(0, BLOCKS)[:, None] * (BLOCKSIZE // 2) + tl.arange(0, BLOCKSIZE // 2)[None, :]
    packed = tl.load(packed_ptr + byte, mask=byte * 2 < end, other=0).to(tl.int32)
    high = tl.load(code_ptr + (packed >> 4)) * scales[:, None]
    low = tl.load(code_ptr + (packed & 15)) * scales[:, None]
    return tl.reshape(tl.join(high, low), (BLOCKS, BLOCKSIZE))


@triton.jit
def _decode(
    out_ptr, packed_ptr, code_ptr, absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, count,
    BLOCKS: tl.constexpr, BLOCKSIZE: tl.constexpr, NESTED: tl.constexpr, NESTED_BLOCKSIZE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    scales = _scales(absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, block, block * BLOCKSIZE < count,
                     NESTED, NESTED_BLOCKSIZE)  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * BLOCKS * BLOCKSIZE
    values = _values(packed_ptr, code_ptr, first, count, scales, BLOCKS, BLOCKSIZE)
    at = first + tl.arange(0, BLOCKS)[:, None] * BLOCKSIZE + tl.arange(0, BLOCKSIZE)[None, :]
    tl.store(out_ptr + at, values.to(out_ptr.dtype.element_ty), mask=at < count)


@triton.jit
def _recode(
    values_ptr, row_scales_ptr, packed_ptr, code_ptr, absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr,
    width, ROW_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, BLOCKSIZE: tl.constexpr, NESTED: tl.constexpr,
    NESTED_BLOCKSIZE: tl.constexpr, LARGEST: tl.constexpr, INTEGER: tl.constexpr,
):  # fmt: skip
    """A program recodes a row of `width` values, BLOCKS blocks at a time; ROW_BLOCKS are at least all of its blocks."""
    start = tl.program_id(0).to(tl.int64) * width
    end = start + width
    block = start // BLOCKSIZE + tl.arange(0, ROW_BLOCKS)
    inside = block * BLOCKSIZE < end
    scales = _scales(absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, block, inside, NESTED,
                     NESTED_BLOCKSIZE)  # fmt: skip
    largest = tl.max(tl.where(inside, tl.abs(scales), 0.0), axis=0)
    largest *= tl.max(tl.abs(tl.load(code_ptr + tl.arange(0, 16))), axis=0)
    row_scale = tl.div_rn(tl.maximum(largest, 1e-30), LARGEST)
    tl.store(row_scales_ptr + tl.program_id(0), row_scale)
    factor = tl.div_rn(1.0, row_scale)
    for part in range(0, width, BLOCKS * BLOCKSIZE):
        first = start + part
        part_block = first // BLOCKSIZE + tl.arange(0, BLOCKS)
        part_scales = _scales(absmax_ptr, nested_absmax_ptr, nested_code_ptr, offset_ptr, part_block,
                              part_block * BLOCKSIZE < end, NESTED, NESTED_BLOCKSIZE)  # fmt: skip
        values = _values(packed_ptr, code_ptr, first, end, part_scales, BLOCKS, BLOCKSIZE) * factor
        if INTEGER:
            values = tl.extra.libdevice.rint(values)
        at = first + tl.arange(0, BLOCKS)[:, None] * BLOCKSIZE + tl.arange(0, BLOCKSIZE)[None, :]
        tl.store(values_ptr + at, values.to(values_ptr.dtype.element_ty), mask=at < end)


def decode_4bit(packed: Tensor, scales: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """See loaders.codec.decode; `scales` are its `Scales`."""
    out = torch.empty(shape, dtype=dtype, device=packed.device)
    blocks = max(1, DECODED_AT_ONCE // scales.blocksize)
    with torch.cuda.device_of(packed):
        _decode[(triton.cdiv(out.numel(), blocks * scales.blocksize),)](
            out, packed, *_tables(scales), out.numel(), BLOCKS=blocks, num_warps=2, **_settings(scales)
        )
    return out


def recode_4bit(packed: Tensor, scales: Any, shape: tuple[int, ...], dtype: torch.dtype) -> EightBit:
    """See loaders.codec.recode."""
    rows, width = shape
    values = torch.empty(shape, dtype=dtype, device=packed.device)
    row_scales = torch.empty(rows, 1, dtype=torch.float32, device=packed.device)
    row_blocks = triton.next_power_of_2(width // scales.blocksize)
    with torch.cuda.device_of(packed):
        _recode[(rows,)](
            values, row_scales, packed, *_tables(scales), width, ROW_BLOCKS=row_blocks,
            BLOCKS=max(1, RECODED_AT_ONCE // scales.blocksize), LARGEST=LARGEST[dtype], INTEGER=dtype == torch.int8,
            num_warps=1, **_settings(scales),
        )  # fmt: skip
    return EightBit(values, row_scales)


def _tables(scales: Any) -> tuple[Tensor, ...]:
    nested = (scales.nested_absmax, scales.nested_code, scales.offset)
    return scales.code, scales.absmax, *((scales.code,) * 3 if scales.nested_absmax is None else nested)


def _settings(scales: Any) -> dict[str, Any]:
    return {"BLOCKSIZE": scales.blocksize, "NESTED": scales.nested_absmax is not None,
            "NESTED_BLOCKSIZE": scales.nested_blocksize, "enable_fp_fusion": False}  # fmt: skip
