"""Triton kernels that convert numbers to 8 bits and back, documented in ops/pointwise.py and ops/scatter.py."""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from ..ops.matrix_8bit import LARGEST, Activation
from .launch import Kernel
from .parts import _part, _power_of_two_over
from .pointwise import _FP8
from .sizes import PART, part_grid, token_sizes

_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
_INT8 = tl.constexpr(LARGEST[torch.int8])


@triton.jit
def _scale_8bit(largest, out_ptr):
    """Return the divisor that maps the magnitude `largest` to the largest number of the 8-bit dtype at `out_ptr`."""
    if out_ptr.dtype.element_ty == tl.int8:
        scale = tl.maximum(largest, 1e-30) / _INT8
    else:
        scale = tl.maximum(largest, 1e-30) / _FP8
    return scale


@triton.jit
def _store_8bit(at, x, scale, inside):
    x = x * (1.0 / scale)
    if at.dtype.element_ty == tl.int8:
        x = libdevice.nearbyint(x)
    tl.store(at, x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _store_token_8bit(out_ptr, scales_ptr, row, cols_a, cols_b, a, b, dim):
    """Store a token in 8 bits with one scale. `a` and `b` are the values of its channels `cols_a` and `cols_b`."""
    scale = _scale_8bit(tl.maximum(tl.max(tl.abs(a), axis=0), tl.max(tl.abs(b), axis=0)), out_ptr)
    tl.store(scales_ptr + row, scale)
    _store_8bit(out_ptr + row * dim + cols_a, a, scale, cols_a < dim)
    _store_8bit(out_ptr + row * dim + cols_b, b, scale, cols_b < dim)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == "silu":
        x = _quotient(x, 1.0 + tl.exp(-x))
    if ACTIVATION == "gelu":  # 1 + tanh(u) = 2 / (1 + exp(-2u)), and 2 * sqrt(2 / pi) = 1.5957691216
        x = _quotient(x, 1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    return x


@triton.jit
def _quotient(x, y):
    """Return x / y by a fast division, or 0 if |y| is above 2**126."""
    return x / y if _INTERPRETED else libdevice.fast_dividef(x, y)  # the interpreter has no such function


@Kernel
def _encode_token_8bit(
    values_ptr, scales_ptr, x_ptr, added_ptr, dim, FIRST: tl.constexpr, SECOND: tl.constexpr, ACTIVATION: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols_a, cols_b = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND)
    a = _activated(tl.load(x_ptr + row * dim + cols_a).to(tl.float32), ACTIVATION)
    b = _activated(tl.load(x_ptr + row * dim + cols_b, mask=cols_b < dim, other=0.0).to(tl.float32), ACTIVATION)
    if added_ptr is not None:
        a += tl.load(added_ptr + row * dim + cols_a).to(tl.float32)
        b += tl.load(added_ptr + row * dim + cols_b, mask=cols_b < dim, other=0.0).to(tl.float32)
    _store_token_8bit(values_ptr, scales_ptr, row, cols_a, cols_b, a, b, dim)


@Kernel
def _encode_8bit(
    values_ptr, scales_ptr, x_ptr, rows, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row[:, None] < rows) & (cols < dim)
    at = row[:, None] * dim + cols
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = _activated(x, ACTIVATION)
    scale = _scale_8bit(tl.max(tl.abs(x), axis=1), values_ptr)
    tl.store(scales_ptr + row, scale, mask=row < rows)
    _store_8bit(values_ptr + at, x, scale[:, None], inside)


@Kernel
def _decode_8bit(out_ptr, values_ptr, scales_ptr, rows, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (row[:, None] < rows) & (cols < dim)
    at = row[:, None] * dim + cols
    values = tl.load(values_ptr + at, mask=inside, other=0).to(tl.float32)
    scale = tl.load(scales_ptr + row, mask=row < rows, other=0.0)
    tl.store(out_ptr + at, (values * scale[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


@Kernel
def _layer_norm_8bit(
    values_ptr, scales_ptr, x_ptr, weight_ptr, bias_ptr, dim, eps, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    """The kernel of `layer_norm_8bit_`. A program reads one token in four passes, a part of the channels at a time."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for block in tl.static_range(BLOCKS):
        cols = block * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / dim
    total = tl.zeros((BLOCK,), tl.float32)
    for block in tl.static_range(BLOCKS):
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * dim + cols, mask=cols < dim, other=0.0).to(tl.float32)
        x = tl.where(cols < dim, x - mean, 0.0)
        total += x * x
    deviation = tl.rsqrt(tl.sum(total, axis=0) / dim + eps)
    largest = tl.zeros((BLOCK,), tl.float32)
    for block in tl.static_range(BLOCKS):
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = _normed(x_ptr + row * dim, weight_ptr, bias_ptr, cols, dim, mean, deviation)
        largest = tl.maximum(largest, tl.abs(x))
    scale = _scale_8bit(tl.max(largest, axis=0), values_ptr)
    tl.store(scales_ptr + row, scale)
    for block in tl.static_range(BLOCKS):
        cols = block * BLOCK + tl.arange(0, BLOCK)
        x = _normed(x_ptr + row * dim, weight_ptr, bias_ptr, cols, dim, mean, deviation)
        _store_8bit(values_ptr + row * dim + cols, x, scale, cols < dim)


@triton.jit
def _normed(x_ptr, weight_ptr, bias_ptr, cols, dim, mean, deviation):
    x = tl.load(x_ptr + cols, mask=cols < dim, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < dim, other=0.0)
    bias = tl.load(bias_ptr + cols, mask=cols < dim, other=0.0)
    return tl.where(cols < dim, (x - mean) * deviation * weight + bias, 0.0)


@Kernel
def _rescale(out_ptr, products_ptr, scales_ptr, weight_scales_ptr, bias_ptr, dim, BLOCK: tl.constexpr):
    row, cols, inside = _part(dim, BLOCK)
    x = tl.load(products_ptr + row * dim + cols, mask=inside, other=0).to(tl.float32)
    x = x * tl.load(scales_ptr + row) * tl.load(weight_scales_ptr + cols, mask=inside, other=0.0)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * dim + cols, x.to(out_ptr.dtype.element_ty), mask=inside)


@Kernel
def _largest(largest_ptr, x_ptr, mean_ptr, stride, dim, BLOCK: tl.constexpr):
    """Store the maximum of |x - mean| at `largest_ptr`, which must hold 0."""
    row, cols, inside = _part(dim, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=inside, other=0.0).to(tl.float32)
    x -= tl.load(mean_ptr + cols, mask=inside, other=0.0)
    tl.atomic_max(largest_ptr, tl.max(tl.where(inside, tl.abs(x), 0.0), axis=0))


@Kernel
def _power_of_two(scale_ptr, factor_ptr, largest_ptr, share):
    """Store the smallest power of two that is at least `share` times the number at `largest_ptr`, and its
    reciprocal."""
    scale, factor = _power_of_two_over(tl.maximum(tl.load(largest_ptr), 1e-30) * share)
    tl.store(scale_ptr, scale)
    tl.store(factor_ptr, factor)


@Kernel
def _to_fp8(out_ptr, rows_ptr, x_ptr, shift_ptr, factor_ptr, stride, dim, BLOCK: tl.constexpr):
    row, cols, inside = _part(dim, BLOCK)
    x = tl.load(x_ptr + row * stride + cols, mask=inside, other=0.0).to(tl.float32)
    x = (x - tl.load(shift_ptr + cols, mask=inside, other=0.0)) * tl.load(factor_ptr)
    x = tl.minimum(tl.maximum(x, -_FP8), _FP8)
    if rows_ptr is not None:
        row = tl.load(rows_ptr + row)
    tl.store(out_ptr + row * dim + cols, x.to(out_ptr.dtype.element_ty), mask=inside)


@Kernel
def _from_fp8(out_ptr, values_ptr, shift_ptr, factor_ptr, dim, BLOCK: tl.constexpr):
    row, cols, inside = _part(dim, BLOCK)
    at = row * dim + cols
    x = tl.load(values_ptr + at, mask=inside, other=0.0).to(tl.float32) * tl.load(factor_ptr)
    x += tl.load(shift_ptr + cols, mask=inside, other=0.0)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=inside)


def encode_8bit_(
    values: Tensor, scales: Tensor, x: Tensor, activation: Activation = "none", added: Tensor | None = None
) -> Tensor:
    dim, x, added = values.numel() // scales.numel(), x.contiguous(), None if added is None else added.contiguous()
    if dim > PART or added is not None:
        with torch.cuda.device_of(x):
            _encode_token_8bit[(scales.numel(),)](
                values, scales, x, added, dim, ACTIVATION=activation, **token_sizes(dim, 2048)
            )
    else:
        _launch_by_head(_encode_8bit, scales, values, scales, x, ACTIVATION=activation)
    return values


def decode_8bit_(out: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    _launch_by_head(_decode_8bit, scales, out, values, scales)
    return out


def layer_norm_8bit_(values: Tensor, scales: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    with torch.cuda.device_of(x):
        given = values, scales, x, weight.contiguous(), bias.contiguous(), x.shape[1], eps
        _layer_norm_8bit[(len(x),)](*given, BLOCK=PART, BLOCKS=triton.cdiv(x.shape[1], PART), num_warps=8)
    return values


def rescale_(out: Tensor, products: Tensor, scales: Tensor, weight_scales: Tensor, bias: Tensor | None) -> Tensor:
    with torch.cuda.device_of(out):
        _rescale[part_grid(out)](out, products, scales, weight_scales, bias, out.shape[1], BLOCK=PART)
    return out


def fp8_scale(x: Tensor, mean: Tensor, headroom: float) -> tuple[Tensor, Tensor]:
    """Return the smallest power of two that is at least headroom * max|x - mean| / 448, and its reciprocal, fp32 [1]
    each. x is [tokens, dim], contiguous in the last dimension."""
    largest = torch.zeros(1, dtype=torch.float32, device=x.device)
    scale, factor = torch.empty_like(largest), torch.empty_like(largest)  # separate, because cuDNN wants alignment
    with torch.cuda.device_of(x):
        _largest[part_grid(x)](largest, x, mean, x.stride(0), x.shape[1], BLOCK=PART)
        _power_of_two[(1,)](scale, factor, largest, headroom / LARGEST[torch.float8_e4m3fn])
    return scale, factor


def to_fp8_(out: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    return scatter_fp8_(out, None, x, shift, factor)


def scatter_fp8_(out: Tensor, rows: Tensor | None, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor to the rows `rows` (int64 [tokens]) of `out` (float8_e4m3fn), and return `out`. If
    `rows` is None, token i goes to row i."""
    with torch.cuda.device_of(out):
        _to_fp8[part_grid(x)](out, rows, x, shift, factor, x.stride(0), x.shape[1], BLOCK=PART)
    return out


def from_fp8_(out: Tensor, values: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    with torch.cuda.device_of(out):
        _from_fp8[part_grid(out)](out, values, shift, factor, out.shape[1], BLOCK=PART)
    return out


def _launch_by_head(kernel: Any, scales: Tensor, *tensors: Tensor, **settings: Any) -> None:
    """Launch a kernel on `tensors`, seen as matrices with one row for each head of each token. `scales` has one entry
    for each row. `settings` are the kernel's constexpr arguments."""
    rows, dim = scales.numel(), tensors[0].numel() // scales.numel()
    block = triton.next_power_of_2(dim)
    count = max(1, 4096 // block)
    with torch.cuda.device_of(tensors[0]):
        kernel[(triton.cdiv(rows, count),)](
            *tensors, rows, dim, ROWS=count, BLOCK=block, num_warps=max(4, min(16, block // 512)), **settings
        )
