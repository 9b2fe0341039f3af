"""The Triton kernels that write a chunk's queries, keys and values to the tensors that attention reads."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cache import Pair
from ..ops.plain import MAX_QUERY_NORM, NormRope
from . import pointwise
from .launch import Kernel
from .parts import _channels, _largest, _load_or_fill, _power_of_two_over, _sum
from .pointwise import _store_as
from .sizes import program_count, token_loop_sizes


@triton.jit
def _rotated(x, cos_ptr, sin_ptr, START: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr):
    """Return x, a token's SIZE channels from START on, after RoPE. HALF is the number of angles per head."""
    pair = tl.arange(0, WIDTH // 2)[None, :]
    if WIDTH % (2 * HALF) != 0:  # otherwise every WIDTH channels have the same angles
        pair = pair + START // 2 + tl.arange(0, SIZE // WIDTH)[:, None] * (WIDTH // 2)
    cos, sin = tl.load(cos_ptr + pair % HALF), tl.load(sin_ptr + pair % HALF)
    even, odd = tl.split(tl.reshape(x, (SIZE // WIDTH, WIDTH // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (SIZE // WIDTH, WIDTH))


@triton.jit
def _scale_of_queries(weight_a, weight_b, unit_scale):
    """Return the scale of fp8 queries and its reciprocal. The scale is the smallest power of two that is at least
    max|weight| * unit_scale. The RMSNorm's weight is given as two blocks; unit_scale is the scale for weights of 1."""
    return _power_of_two_over(tl.maximum(_largest(weight_a, weight_b), 1e-30) * unit_scale)


@Kernel
def _norms_scale(
    scale_ptr, factor_ptr, weight_ptr, dim, unit_scale, FIRST: tl.constexpr, SECOND: tl.constexpr, WIDTH: tl.constexpr
):
    left, right = _channels(0, FIRST, WIDTH), _channels(FIRST, SECOND, WIDTH)
    weight_a = _load_or_fill(weight_ptr, left, left < dim, 1.0)
    weight_b = _load_or_fill(weight_ptr, right, right < dim, 1.0)
    scale, factor = _scale_of_queries(weight_a, weight_b, unit_scale)
    tl.store(scale_ptr, scale)
    tl.store(factor_ptr, factor)


@Kernel
def _scatter_qkv(
    q_out_ptr,
    k_out_ptr,
    v_out_ptr,
    rows_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_ptr,
    sin_ptr,
    q_scale_ptr,
    q_factor_ptr,
    k_shift_ptr,
    k_factor_ptr,
    v_shift_ptr,
    v_factor_ptr,
    q_stride,
    k_stride,
    v_stride,
    q_out_stride,
    rows,
    dim,
    eps,
    unit_scale,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
):
    """The kernel of `scatter_qkv_`. Grid axis 1 selects q, k or v. Of n programs on axis 0, program i processes the
    tokens i, i + n and so on. A program splits a token's channels into FIRST and SECOND, powers of two, and processes
    WIDTH at once. HALF counts the RoPE angles per head."""
    first, step, kind = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.program_id(1)
    left, right = _channels(0, FIRST, WIDTH), _channels(FIRST, SECOND, WIDTH)
    whole, inside = left < dim, right < dim
    x_ptr, stride, out_ptr, out_stride = q_ptr, q_stride, q_out_ptr, q_out_stride
    weight_ptr = q_weight_ptr
    if kind == 1:
        x_ptr, stride, out_ptr, out_stride, weight_ptr = k_ptr, k_stride, k_out_ptr, dim, k_weight_ptr
    if kind == 2:
        x_ptr, stride, out_ptr, out_stride = v_ptr, v_stride, v_out_ptr, dim
    weight_a, weight_b = _load_or_fill(weight_ptr, left, whole, 1.0), _load_or_fill(weight_ptr, right, inside, 1.0)
    factor, shift_ptr = unit_scale * 0.0 + 1.0, k_shift_ptr
    shift_a, shift_b = tl.zeros_like(weight_a), tl.zeros_like(weight_b)
    if q_scale_ptr is not None:
        scale, factor = _scale_of_queries(weight_a, weight_b, unit_scale)
        if (kind == 0) & (first == 0):
            tl.store(q_scale_ptr, scale)
            tl.store(q_factor_ptr, factor)
    if k_factor_ptr is not None:
        if kind == 1:
            factor = tl.load(k_factor_ptr)
        if kind == 2:
            factor, shift_ptr = tl.load(v_factor_ptr), v_shift_ptr
        shift_a = tl.load(shift_ptr + left, mask=whole & (kind > 0), other=0.0)
        shift_b = tl.load(shift_ptr + right, mask=inside & (kind > 0), other=0.0)
    next_a = tl.load(x_ptr + first * stride + left)
    next_b = tl.load(x_ptr + first * stride + right, mask=inside, other=0.0)
    row = first
    while row < rows:
        a, b, after = next_a.to(tl.float32), next_b.to(tl.float32), row + step
        next_a = tl.load(x_ptr + after * stride + left, mask=whole & (after < rows), other=0.0)
        next_b = tl.load(x_ptr + after * stride + right, mask=inside & (after < rows), other=0.0)
        to_ptr = out_ptr + tl.load(rows_ptr + row, mask=kind > 0, other=row) * out_stride
        if kind < 2:
            deviation = tl.rsqrt(_sum(a * a, b * b) / dim + eps)
            cos_at, sin_at = cos_ptr + row * HALF, sin_ptr + row * HALF
            a = _rotated(a * deviation * weight_a, cos_at, sin_at, 0, FIRST, WIDTH, HALF)
            b = _rotated(b * deviation * weight_b, cos_at, sin_at, FIRST, SECOND, WIDTH, HALF)
        _store_as(to_ptr + left, a - shift_a, factor, whole)
        _store_as(to_ptr + right, b - shift_b, factor, inside)
        row = after


def scatter_qkv_(
    out: Tensor,
    values_out: Tensor | None,
    rows: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    norm_ropes: tuple[NormRope, NormRope],
    fp8_queries: tuple[Tensor, Tensor, Tensor] | None,
    scalings: tuple[Pair, Pair] | None,
) -> Tensor:
    """Apply RMSNorm and RoPE to q and k. Write keys to the rows `rows` (int64 [tokens]) of `out`, and values to the
    same rows of `values_out`. Return `out`.

    values_out: None skips the values.
    qkv: q, k and v, each [tokens, dim].
    norm_ropes: for q and for k. The angles and eps of q's NormRope also apply to k.
    fp8_queries: three tensors to receive fp8 queries, their scale and 1 / scale. None: the new queries overwrite q.
    scalings: to write keys and values in fp8: (shift, factor) of keys and of values; else None.
    """
    (q, k, v), dim, kinds = qkv, out.shape[1], 2 if values_out is None else 3
    (q_out, *scale), pairs = fp8_queries or (q, None, None), scalings or ((None, None), (None, None))
    weights, (_, cos, sin, eps) = (norm_rope.weight.contiguous() for norm_rope in norm_ropes), norm_ropes[0]
    places, strides = (q_out, out, out if values_out is None else values_out), (x.stride(0) for x in (q, k, v, q_out))
    vectors, sizes = (*weights, cos, sin, *scale, *pairs[0], *pairs[1]), token_loop_sizes(dim)
    with torch.cuda.device_of(out):
        grid = program_count(q, sizes, 3), kinds  # programs of two kinds: a multiprocessor runs six at once
        numbers = *strides, *q.shape, eps, _unit_scale(dim)
        _scatter_qkv[grid](*places, rows, q, k, v, *vectors, *numbers, HALF=cos.shape[1], **sizes)
    return out


def rope_fp8_(out: Tensor, scale: Tensor, factor: Tensor, x: Tensor, norm_rope: NormRope) -> Tensor:
    """Write queries x [tokens, dim], after RMSNorm and RoPE, to `out` in fp8, and return `out`. `scale` receives the
    fp32 scale [1] of all queries, and `factor` receives 1 / scale."""
    dim = x.shape[1]
    with torch.cuda.device_of(x):
        _norms_scale[(1,)](scale, factor, norm_rope.weight.contiguous(), dim, _unit_scale(dim), **token_loop_sizes(dim))
    return pointwise.scatter_rope_(out, None, x, norm_rope, None, factor)


def _unit_scale(dim: int) -> float:
    """Return the number by which to divide queries of `dim` channels, so that their Euclidean norm is at most
    MAX_QUERY_NORM. The queries come from an RMSNorm with weights of 1."""
    return dim**0.5 / MAX_QUERY_NORM
