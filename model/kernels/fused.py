"""Triton kernels that do in one pass what several of pointwise.py do. Imported on GPUs with Triton only.

Few tokens leave a GPU waiting between kernels, and each kernel reads again what the one before has written. Arithmetic
is fp32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..matrix_8bit import LARGEST
from ..pointwise_plain import Turning
from . import matrix_8bit as in_8_bits
from . import pointwise
from .launch import Kernel
from .matrix_8bit import _FP8, _scale_8bit, _store_8bit
from .pointwise import PART

SHORT = 2048
"""A norm of more channels keeps so many registers that its sums are faster in kernels of their own: of 5,120 one kernel
takes 76 us for 2,880 tokens, and three 69."""


@Kernel
def _add_norm(
    x_ptr, out_ptr, scales_ptr, y_ptr, gate_ptr, scale_ptr, shift_ptr, weight_ptr, bias_ptr, dim, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside, at = cols < dim, row * dim + cols
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    if y_ptr is not None:
        y = tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if gate_ptr is not None:
            y *= tl.load(gate_ptr + cols, mask=inside, other=0.0)
        x = x + y
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = x * (1.0 + scale) + tl.load(shift_ptr + at, mask=inside, other=0.0).to(tl.float32)
    if y_ptr is not None:
        tl.store(x_ptr + at, x, mask=inside)
    x = x.to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x, axis=0) / dim, 0.0)
    deviation = tl.rsqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0)
    out = centred * deviation * weight + tl.load(bias_ptr + cols, mask=inside, other=0.0)
    if scales_ptr is None:
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        largest = _scale_8bit(tl.max(tl.abs(out), axis=0), out_ptr)
        tl.store(scales_ptr + row, largest)
        _store_8bit(out_ptr + at, out, largest, inside)


@triton.jit
def _power_of_two_over(x):
    """The least power of two from x on, by its exponent's bits, and 1 over it."""
    exponent = (x.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@Kernel
def _turned(
    out_ptr, rows_ptr, x_ptr, weight_ptr, cos_ptr, sin_ptr, shift_ptr, factor_ptr, scale_out_ptr, factor_out_ptr,
    stride, dim, eps, root, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """BOUNDED: in 8 bits by the least scale that no token of that norm can exceed, which program 0 writes. Else by
    shift and factor, if there are any."""
    row = tl.program_id(0).to(tl.int64)
    total, largest = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for block in tl.static_range(BLOCKS):
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + cols, mask=cols < dim, other=0.0).to(tl.float32)
        total += x * x
        if BOUNDED:
            weight = tl.load(weight_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(weight))
    deviation = tl.rsqrt(tl.sum(total, axis=0) / dim + eps)
    if BOUNDED:
        made, factor = _power_of_two_over(tl.maximum(tl.max(largest, axis=0), 1e-30) * root)
        if row == 0:
            tl.store(scale_out_ptr, made)
            tl.store(factor_out_ptr, factor)
    elif factor_ptr is not None:
        factor = tl.load(factor_ptr)
    place = row
    if rows_ptr is not None:
        place = tl.load(rows_ptr + row)
    for block in tl.static_range(BLOCKS):  # the second read comes from the GPU's cache
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + cols, mask=cols < dim, other=0.0).to(tl.float32)
        x = x * deviation * tl.load(weight_ptr + cols, mask=cols < dim, other=0.0)
        angle = row * HALF + (block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)) % HALF
        cos = tl.load(cos_ptr + angle)
        sin = tl.load(sin_ptr + angle)
        even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
        x = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (BLOCK,))
        if shift_ptr is not None:
            x -= tl.load(shift_ptr + cols, mask=cols < dim, other=0.0)
        if BOUNDED or factor_ptr is not None:
            x = tl.minimum(tl.maximum(x * factor, -_FP8), _FP8)
        tl.store(out_ptr + place * dim + cols, x.to(out_ptr.dtype.element_ty), mask=cols < dim)


@Kernel
def _from_fp8_rows(out_ptr, scales_ptr, values_ptr, shift_ptr, factor_ptr, dim, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside, at = cols < dim, token * dim + cols
    out = tl.load(values_ptr + at, mask=inside, other=0.0).to(tl.float32)
    out = out * tl.load(factor_ptr) + tl.load(shift_ptr + cols, mask=inside, other=0.0)
    if scales_ptr is None:
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        scale = _scale_8bit(tl.max(tl.where(inside, tl.abs(out), 0.0), axis=0), out_ptr)
        tl.store(scales_ptr + token, scale)
        _store_8bit(out_ptr + at, out, scale, inside)


def layer_norm_8bit_(values: Tensor, scales: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See pointwise.layer_norm_8bit."""
    if x.shape[1] > SHORT:
        return in_8_bits.layer_norm_8bit_(values, scales, x, weight, bias, eps)
    add_norm_(x, values, scales, (None, None), (None, None), (weight, bias, eps))
    return values


def add_norm_(
    x: Tensor, out: Tensor, scales: Tensor | None, added: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None], norm: tuple[Tensor, Tensor, float],
) -> Tensor:  # fmt: skip
    """See pointwise.add_norm."""
    (y, gate), (weight, bias, eps) = added, norm
    if x.shape[1] > SHORT and y is not None:
        return _add_norm_in_steps(x, out, scales, (y, gate), affine, norm)
    gate = None if gate is None else gate.contiguous()
    with torch.cuda.device_of(x):
        _add_norm[(len(x),)](
            x, out, scales, y, gate, *affine, weight.contiguous(), bias.contiguous(), x.shape[1], eps,
            **_whole_row(x.shape[1]),
        )  # fmt: skip
    return x


def _add_norm_in_steps(
    x: Tensor, out: Tensor, scales: Tensor | None, added: tuple[Tensor, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None], norm: tuple[Tensor, Tensor, float],
) -> Tensor:  # fmt: skip
    pointwise.gated_add_(x, *added)
    scale, shift = affine
    if scale is not None and shift is not None:
        pointwise.affine_(x, scale, shift)
    if scales is None:
        pointwise.layer_norm_(out, x, *norm)
    else:
        in_8_bits.layer_norm_8bit_(out, scales, x, *norm)
    return x


def put_turned_(
    out: Tensor, rows: Tensor | None, x: Tensor, turning: Turning, shift: Tensor | None, factor: Tensor | None
) -> Tensor:
    """See pointwise.put_turned_."""
    return _turn(out, rows, x, turning, (shift, factor, None, None))


def turned_fp8_(out: Tensor, scale: Tensor, factor: Tensor, x: Tensor, turning: Turning) -> Tensor:
    """See pointwise.turned_fp8."""
    return _turn(out, None, x, turning, (None, None, scale, factor))


def _turn(
    out: Tensor, rows: Tensor | None, x: Tensor, turning: Turning, scaling: tuple[Tensor | None, ...]
) -> Tensor:
    dim, bounded = x.shape[1], scaling[2] is not None
    weight, cos, sin, eps = turning
    bound = dim**0.5 / LARGEST[torch.float8_e4m3fn]
    with torch.cuda.device_of(x):
        _turned[(len(x),)](
            out, rows, x, weight.contiguous(), cos, sin, *scaling, x.stride(0), dim, eps, bound, BLOCK=PART,
            BLOCKS=triton.cdiv(dim, PART), HALF=cos.shape[1], BOUNDED=bounded, num_warps=8,
        )  # fmt: skip
    return out


def merge_fp8_(
    out: Tensor, scales: Tensor | None, parts: Tensor, log_sums: Tensor | None, rest: Tensor | None,
    rest_log_sums: Tensor | None, shift: Tensor, factor: Tensor,
) -> Tensor:  # fmt: skip
    """See pointwise.merge_fp8_. Of several parts in three kernels: one for all of it took twice as long."""
    _, tokens, heads, width = parts.shape
    if log_sums is None:
        with torch.cuda.device_of(out):
            _from_fp8_rows[(tokens,)](out, scales, parts, shift, factor, heads * width, **_whole_row(heads * width))
        return out
    merged = out if scales is None else torch.empty_like(out, dtype=torch.bfloat16)
    pointwise.merge_(merged.unflatten(1, (heads, -1)), parts, log_sums, rest, rest_log_sums)
    in_8_bits.from_fp8_(merged, merged, shift, factor)
    return out if scales is None else in_8_bits.encode_8bit_(out, scales, merged)


def _whole_row(dim: int) -> dict[str, int]:
    """A program's channels, all of a token, and its warps."""
    block = triton.next_power_of_2(dim)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 512))}
