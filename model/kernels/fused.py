"""Triton kernels that do in one pass what several of pointwise.py do. Imported on GPUs with Triton only.

Few tokens leave a GPU waiting between kernels, and each kernel reads again what the one before has written. Arithmetic
is fp32."""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cache import Pair
from ..matrix_8bit import LARGEST
from ..pointwise_plain import Turning
from . import matrix_8bit as in_8_bits
from . import pointwise
from .launch import Kernel
from .matrix_8bit import _FP8, _store_token_8bit
from .pointwise import in_two

ALONE = 2048
"""A norm of more channels, with nothing to be added before, is faster in parts: 2,880 tokens of 5,120 take 32 us so on
an H100, and 35 at once. With something to be added it is faster at once."""


@triton.jit
def _summed(x_ptr, y_ptr, gate_ptr, scale_ptr, shift_ptr, row, cols, dim):
    """x after what is added to it and its affine, which are stored."""
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
    return x.to(tl.float32)


@triton.jit
def _weighted(centred, deviation, weight_ptr, bias_ptr, cols, dim):
    weight = tl.load(weight_ptr + cols, mask=cols < dim, other=0.0)
    return centred * deviation * weight + tl.load(bias_ptr + cols, mask=cols < dim, other=0.0)


@Kernel
def _add_norm(
    x_ptr, out_ptr, scales_ptr, y_ptr, gate_ptr, scale_ptr, shift_ptr, weight_ptr, bias_ptr, dim, eps,
    FIRST: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    left, right = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND)
    a = _summed(x_ptr, y_ptr, gate_ptr, scale_ptr, shift_ptr, row, left, dim)
    b = _summed(x_ptr, y_ptr, gate_ptr, scale_ptr, shift_ptr, row, right, dim)
    mean = (tl.sum(a, axis=0) + tl.sum(b, axis=0)) / dim
    a, b = a - mean, tl.where(right < dim, b - mean, 0.0)
    deviation = tl.rsqrt((tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)) / dim + eps)
    a = _weighted(a, deviation, weight_ptr, bias_ptr, left, dim)
    b = _weighted(b, deviation, weight_ptr, bias_ptr, right, dim)
    if scales_ptr is None:
        tl.store(out_ptr + row * dim + left, a.to(out_ptr.dtype.element_ty))
        tl.store(out_ptr + row * dim + right, b.to(out_ptr.dtype.element_ty), mask=right < dim)
    else:
        _store_token_8bit(out_ptr, scales_ptr, row, left, right, a, b, dim)


@triton.jit
def _power_of_two_over(x):
    """The least power of two from x on, by its exponent's bits, and 1 over it."""
    exponent = (x.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _rotated(x, cos_ptr, sin_ptr, START: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr):
    """x, a token's SIZE channels from START on, by the token's angles."""
    angle = (START // 2 + tl.arange(0, SIZE // 2)) % HALF
    cos, sin = tl.load(cos_ptr + angle), tl.load(sin_ptr + angle)
    even, odd = tl.split(tl.reshape(x, (SIZE // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (SIZE,))


@triton.jit
def _store_by_factor(at, x, factor, inside):
    x = tl.minimum(tl.maximum(x * factor, -_FP8), _FP8)
    tl.store(at, x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _sum_and_largest(sum_a, largest_a, sum_b, largest_b):
    return sum_a + sum_b, tl.maximum(largest_a, largest_b)


@triton.jit
def _put_part(out_ptr, x_ptr, shift_ptr, factor_ptr, cols, dim):
    inside = cols < dim
    x = tl.load(x_ptr + cols, mask=inside, other=0.0)
    if factor_ptr is None:
        tl.store(out_ptr + cols, x.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        x = x.to(tl.float32) - tl.load(shift_ptr + cols, mask=inside, other=0.0)
        _store_by_factor(out_ptr + cols, x, tl.load(factor_ptr), inside)


@Kernel
def _put_own(
    q_out_ptr, k_out_ptr, v_out_ptr, rows_ptr, q_ptr, k_ptr, v_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr,
    q_scale_ptr, q_factor_ptr, k_shift_ptr, k_factor_ptr, v_shift_ptr, v_factor_ptr, q_stride, k_stride, v_stride,
    q_out_stride, dim, eps, root, FIRST_KIND: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr,
    HALF: tl.constexpr,
):  # fmt: skip
    """Programs of three kinds: a token's query, its key, its value. In 8 bits a query is multiplied by the least factor
    with which no token of its norm becomes too large, which token 0 writes; the others by factors that are given."""
    row, kind = tl.program_id(0).to(tl.int64), FIRST_KIND + tl.program_id(1)
    left, right = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND)
    inside, place = right < dim, row
    if rows_ptr is not None:
        place = tl.load(rows_ptr + row)
    if kind < 2:
        x_ptr, weight_ptr, out_ptr = q_ptr + row * q_stride, q_weight_ptr, q_out_ptr + row * q_out_stride
        if kind == 1:
            x_ptr, weight_ptr, out_ptr = k_ptr + row * k_stride, k_weight_ptr, k_out_ptr + place * dim
        a = tl.load(x_ptr + left).to(tl.float32)
        b = tl.load(x_ptr + right, mask=inside, other=0.0).to(tl.float32)
        of_a = tl.load(weight_ptr + left).to(tl.float32)
        of_b = tl.load(weight_ptr + right, mask=inside, other=0.0).to(tl.float32)
        if q_scale_ptr is not None:  # a sum and a largest at once: each has all threads wait
            total_a, most_a = tl.reduce((a * a, tl.abs(of_a)), 0, _sum_and_largest)
            total_b, most_b = tl.reduce((b * b, tl.abs(of_b)), 0, _sum_and_largest)
            total, most = total_a + total_b, tl.maximum(most_a, most_b)
        else:
            total = tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)
        deviation = tl.rsqrt(total / dim + eps)
        a = _rotated(a * deviation * of_a, cos_ptr + row * HALF, sin_ptr + row * HALF, 0, FIRST, HALF)
        b = _rotated(b * deviation * of_b, cos_ptr + row * HALF, sin_ptr + row * HALF, FIRST, SECOND, HALF)
        if k_shift_ptr is not None:
            a -= tl.load(k_shift_ptr + left, mask=(left < dim) & (kind == 1), other=0.0)
            b -= tl.load(k_shift_ptr + right, mask=inside & (kind == 1), other=0.0)
        if q_scale_ptr is not None:
            scale, factor = _power_of_two_over(tl.maximum(most, 1e-30) * root)
            if (kind == 0) & (row == 0):
                tl.store(q_scale_ptr, scale)
                tl.store(q_factor_ptr, factor)
            if k_factor_ptr is not None:
                factor = tl.where(kind == 0, factor, tl.load(k_factor_ptr))
            _store_by_factor(out_ptr + left, a, factor, left < dim)
            _store_by_factor(out_ptr + right, b, factor, inside)
        elif k_factor_ptr is not None:
            _store_by_factor(out_ptr + left, a, tl.load(k_factor_ptr), left < dim)
            _store_by_factor(out_ptr + right, b, tl.load(k_factor_ptr), inside)
        else:
            tl.store(out_ptr + left, a.to(out_ptr.dtype.element_ty))
            tl.store(out_ptr + right, b.to(out_ptr.dtype.element_ty), mask=inside)
    elif v_out_ptr is not None:
        out_ptr, x_ptr = v_out_ptr + place * dim, v_ptr + row * v_stride
        _put_part(out_ptr, x_ptr, v_shift_ptr, v_factor_ptr, left, dim)
        _put_part(out_ptr, x_ptr, v_shift_ptr, v_factor_ptr, right, dim)


@Kernel
def _from_fp8_rows(
    out_ptr, scales_ptr, values_ptr, shift_ptr, factor_ptr, dim, FIRST: tl.constexpr, SECOND: tl.constexpr
):  # fmt: skip
    row, factor = tl.program_id(0).to(tl.int64), tl.load(factor_ptr)
    left, right = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND)
    inside = right < dim
    a = tl.load(values_ptr + row * dim + left).to(tl.float32) * factor + tl.load(shift_ptr + left)
    b = tl.load(values_ptr + row * dim + right, mask=inside, other=0.0).to(tl.float32) * factor
    b += tl.load(shift_ptr + right, mask=inside, other=0.0)
    if scales_ptr is None:
        tl.store(out_ptr + row * dim + left, a.to(out_ptr.dtype.element_ty))
        tl.store(out_ptr + row * dim + right, b.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        _store_token_8bit(out_ptr, scales_ptr, row, left, right, a, b, dim)


def layer_norm_8bit_(values: Tensor, scales: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See pointwise.layer_norm_8bit."""
    if x.shape[1] > ALONE:
        return in_8_bits.layer_norm_8bit_(values, scales, x, weight, bias, eps)
    add_norm_(x, values, scales, (None, None), (None, None), (weight, bias, eps))
    return values


def add_norm_(
    x: Tensor, out: Tensor, scales: Tensor | None, added: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None], norm: tuple[Tensor, Tensor, float],
) -> Tensor:  # fmt: skip
    """See pointwise.add_norm."""
    (y, gate), (weight, bias, eps) = added, norm
    gate = None if gate is None else gate.contiguous()
    with torch.cuda.device_of(x):
        _add_norm[(len(x),)](
            x, out, scales, y, gate, *affine, weight.contiguous(), bias.contiguous(), x.shape[1], eps,
            **in_two(x.shape[1], 320),
        )  # fmt: skip
    return x


def put_own_(
    out: Tensor, values_out: Tensor | None, rows: Tensor, given: tuple[Tensor, Tensor, Tensor],
    turnings: tuple[Turning, Turning], made: tuple[Tensor, Tensor, Tensor] | None, scalings: tuple[Pair, Pair] | None,
) -> Tensor:  # fmt: skip
    """See puts.put_own_."""
    q_out, *scales = made or (given[0], None, None)
    places, kinds = (q_out, out, values_out, rows), (0, 2 if values_out is None else 3)
    return _put(kinds, places, given, turnings, (*scales, *(scalings or ((None, None), (None, None)))))


def put_turned_(
    out: Tensor, rows: Tensor, x: Tensor, turning: Turning, shift: Tensor | None, factor: Tensor | None
) -> Tensor:
    """See puts.put_turned_."""
    return _put((1, 1), (out, out, None, rows), (x, x, x), (turning,) * 2, (None, None, (shift, factor), (None, None)))


def turned_fp8_(out: Tensor, scale: Tensor, factor: Tensor, x: Tensor, turning: Turning) -> Tensor:
    """See puts.turned_fp8."""
    scaling = scale, factor, (None, None), (None, None)
    return _put((0, 1), (out, out, None, None), (x, x, x), (turning,) * 2, scaling)


def _put(
    kinds: tuple[int, int], places: tuple[Tensor, Tensor, Tensor | None, Tensor | None], given: tuple[Tensor, ...],
    turnings: Sequence[Turning], scaling: tuple[Any, ...],
) -> Tensor:  # fmt: skip
    """`kinds`: the first kind of programs, and how many. Of kinds that there are none of, any tensor is given."""
    (q_out, out, _, _), dim, (_, cos, sin, eps) = places, given[0].shape[1], turnings[0]
    weights, strides = (turning.weight.contiguous() for turning in turnings), (x.stride(0) for x in given)
    scale, factor, *pairs = scaling
    with torch.cuda.device_of(out):
        _put_own[(len(given[0]), kinds[1])](
            *places, *given, *weights, cos, sin, scale, factor, *pairs[0], *pairs[1], *strides, q_out.stride(0), dim,
            eps, dim**0.5 / LARGEST[torch.float8_e4m3fn], FIRST_KIND=kinds[0], HALF=cos.shape[1], **in_two(dim, 320),
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
            _from_fp8_rows[(tokens,)](out, scales, parts, shift, factor, heads * width, **in_two(heads * width, 1280))
        return out
    merged = out if scales is None else torch.empty_like(out, dtype=torch.bfloat16)
    pointwise.merge_(merged.unflatten(1, (heads, -1)), parts, log_sums, rest, rest_log_sums)
    in_8_bits.from_fp8_(merged, merged, shift, factor)
    return out if scales is None else in_8_bits.encode_8bit_(out, scales, merged)
