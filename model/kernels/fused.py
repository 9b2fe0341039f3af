"""Triton kernels that each combine several operations of ops/pointwise.py, in fp32. With separate kernels, a GPU idles
between kernels if there are few tokens, and each kernel reads the previous one's result from memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cache import Pair
from ..ops.plain import QUERY_LENGTH, NormRope
from . import matrix_8bit as in_8_bits
from . import pointwise
from .launch import Kernel
from .matrix_8bit import _scale_8bit, _store_8bit, _store_token_8bit
from .pointwise import _store_as
from .sizes import in_two, programs, token_by_token

ALONE = 2048
"""The largest number of channels with which `layer_norm_8bit_` processes full tokens. Tokens with more channels are
processed in parts: on an H100, 2,880 tokens of 5,120 channels take 32 us in parts, and 35 us in full. `add_norm_`, a
norm after an addition, is always faster with full tokens."""


@triton.jit
def _channels(START: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Return the indices of SIZE adjacent channels, from START on, as a matrix [SIZE / WIDTH, WIDTH]. A thread
    processes four adjacent channels in each row for every dtype, so threads need not exchange data between reading and
    writing."""
    columns = tl.max_contiguous(tl.arange(0, WIDTH), 4)
    return START + tl.arange(0, SIZE // WIDTH)[:, None] * WIDTH + columns[None, :]


@triton.jit
def _given(ptr, cols, inside, other):
    """Return the channels `cols` of the vector at `ptr` in fp32, 0 outside the mask `inside`; `other` if `ptr` is
    None."""
    if ptr is None:
        x = tl.full(cols.shape, other, tl.float32)
    else:
        x = tl.load(ptr + cols, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _sum(a, b):
    return tl.sum(tl.sum(a, axis=0) + tl.sum(b, axis=0), axis=0)


@triton.jit
def _largest(a, b):
    return tl.max(tl.maximum(tl.max(tl.abs(a), axis=0), tl.max(tl.abs(b), axis=0)), axis=0)


@triton.jit
def _loaded(x_ptr, y_ptr, scale_ptr, shift_ptr, at, inside):
    """Load a part of a token with the channel offsets `at`. Return x, the addend y, scale and shift, each in the dtype
    of the tensor in memory. x stands for tensors that are not given."""
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    y, scale, shift = x, x, x
    if y_ptr is not None:
        y = tl.load(y_ptr + at, mask=inside, other=0.0)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + at, mask=inside, other=0.0)
        shift = tl.load(shift_ptr + at, mask=inside, other=0.0)
    return x, y, scale, shift


@triton.jit
def _summed(x_at, y_ptr, gate_ptr, scale_ptr, loaded, gate, inside):
    """Return (x + y * gate) * (1 + scale) + shift in fp32, and write it to x at `x_at`. `loaded` is the result of
    `_loaded`. A term without its pointer is left out; without `y_ptr` and `scale_ptr` nothing is written."""
    x, y, scale, shift = loaded
    if y_ptr is not None:
        y = y.to(tl.float32)
        if gate_ptr is not None:
            y *= gate
        x = x + y
    if scale_ptr is not None:
        x = x * (1.0 + scale.to(tl.float32)) + shift.to(tl.float32)
    if y_ptr is not None or scale_ptr is not None:
        tl.store(x_at, x, mask=inside)
    return x.to(tl.float32)


@Kernel
def _add_norm(
    x_ptr,
    out_ptr,
    scales_ptr,
    y_ptr,
    gate_ptr,
    scale_ptr,
    shift_ptr,
    weight_ptr,
    bias_ptr,
    rows,
    dim,
    eps,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The kernel of `add_norm_`. Of n programs, each computes every n-th token, in two parts of FIRST and SECOND
    channels, and loads the next token in the meantime."""
    left, right = _channels(0, FIRST, WIDTH), _channels(FIRST, SECOND, WIDTH)
    whole, inside = left < dim, right < dim
    gate_a, gate_b = _given(gate_ptr, left, whole, 1.0), _given(gate_ptr, right, inside, 1.0)
    weight_a, weight_b = _given(weight_ptr, left, whole, 1.0), _given(weight_ptr, right, inside, 1.0)
    bias_a, bias_b = _given(bias_ptr, left, whole, 0.0), _given(bias_ptr, right, inside, 0.0)
    first, step = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    next_a = _loaded(x_ptr, y_ptr, scale_ptr, shift_ptr, first * dim + left, whole)
    next_b = _loaded(x_ptr, y_ptr, scale_ptr, shift_ptr, first * dim + right, inside)
    row = first
    while row < rows:
        given_a, given_b, after = next_a, next_b, row + step
        next_a = _loaded(x_ptr, y_ptr, scale_ptr, shift_ptr, after * dim + left, whole & (after < rows))
        next_b = _loaded(x_ptr, y_ptr, scale_ptr, shift_ptr, after * dim + right, inside & (after < rows))
        a = _summed(x_ptr + row * dim + left, y_ptr, gate_ptr, scale_ptr, given_a, gate_a, whole)
        b = _summed(x_ptr + row * dim + right, y_ptr, gate_ptr, scale_ptr, given_b, gate_b, inside)
        mean = _sum(a, b) / dim
        a, b = a - mean, tl.where(inside, b - mean, 0.0)
        deviation = tl.rsqrt(_sum(a * a, b * b) / dim + eps)
        a, b = a * deviation * weight_a + bias_a, b * deviation * weight_b + bias_b
        if scales_ptr is None:
            tl.store(out_ptr + row * dim + left, a.to(out_ptr.dtype.element_ty))
            tl.store(out_ptr + row * dim + right, b.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            scale = _scale_8bit(_largest(a, b), out_ptr)
            tl.store(scales_ptr + row, scale)
            _store_8bit(out_ptr + row * dim + left, a, scale, whole)
            _store_8bit(out_ptr + row * dim + right, b, scale, inside)
        row = after


@triton.jit
def _power_of_two_over(x):
    """Return the smallest power of two that is at least x, and its reciprocal, from the bits of x."""
    exponent = (x.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _rotated(x, cos_ptr, sin_ptr, START: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr):
    """Return SIZE channels x of a token, from channel START on, after RoPE. All heads share the HALF cosines and HALF
    sines."""
    pair = tl.arange(0, WIDTH // 2)[None, :]
    if WIDTH % (2 * HALF) != 0:  # otherwise every WIDTH channels have the same angles
        pair = pair + START // 2 + tl.arange(0, SIZE // WIDTH)[:, None] * (WIDTH // 2)
    cos, sin = tl.load(cos_ptr + pair % HALF), tl.load(sin_ptr + pair % HALF)
    even, odd = tl.split(tl.reshape(x, (SIZE // WIDTH, WIDTH // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (SIZE // WIDTH, WIDTH))


@triton.jit
def _scale_of_queries(weight_a, weight_b, root):
    """Return the scale for 8-bit queries after a norm, the smallest power of two without overflow, and 1 / scale.
    `weight_a` and `weight_b` are the norm's weights, `root` is the result of `_root`."""
    return _power_of_two_over(tl.maximum(_largest(weight_a, weight_b), 1e-30) * root)


@Kernel
def _norms_scale(
    scale_ptr, factor_ptr, weight_ptr, dim, root, FIRST: tl.constexpr, SECOND: tl.constexpr, WIDTH: tl.constexpr
):
    left, right = _channels(0, FIRST, WIDTH), _channels(FIRST, SECOND, WIDTH)
    weight_a, weight_b = _given(weight_ptr, left, left < dim, 1.0), _given(weight_ptr, right, right < dim, 1.0)
    scale, factor = _scale_of_queries(weight_a, weight_b, root)
    tl.store(scale_ptr, scale)
    tl.store(factor_ptr, factor)


@Kernel
def _put_own(
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
    root,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
):
    """The kernel of `scatter_qkv_`. Programs for queries, keys or values compute one token after the other, and load
    the next one in the meantime. In 8 bits, the first program for queries stores their scale."""
    first, step, kind = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.program_id(1)
    left, right = _channels(0, FIRST, WIDTH), _channels(FIRST, SECOND, WIDTH)
    whole, inside = left < dim, right < dim
    x_ptr, stride, out_ptr, out_stride = q_ptr, q_stride, q_out_ptr, q_out_stride
    weight_ptr = q_weight_ptr
    if kind == 1:
        x_ptr, stride, out_ptr, out_stride, weight_ptr = k_ptr, k_stride, k_out_ptr, dim, k_weight_ptr
    if kind == 2:
        x_ptr, stride, out_ptr, out_stride = v_ptr, v_stride, v_out_ptr, dim
    weight_a, weight_b = _given(weight_ptr, left, whole, 1.0), _given(weight_ptr, right, inside, 1.0)
    factor, shift_ptr = root * 0.0 + 1.0, k_shift_ptr
    shift_a, shift_b = tl.zeros_like(weight_a), tl.zeros_like(weight_b)
    if q_scale_ptr is not None:
        scale, factor = _scale_of_queries(weight_a, weight_b, root)
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


@Kernel
def _from_fp8_rows(
    out_ptr, scales_ptr, values_ptr, shift_ptr, factor_ptr, dim, FIRST: tl.constexpr, SECOND: tl.constexpr
):
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
    """Write the layer norm of x [tokens, dim], divided by a scale for each token, to `values` (int8 or float8_e4m3fn),
    and return `values`. The scales are written to `scales` (fp32 [tokens, 1]). weight and bias are [dim]."""
    if x.shape[1] > ALONE:
        return in_8_bits.layer_norm_8bit_(values, scales, x, weight, bias, eps)
    add_norm_(x, values, scales, (None, None), (None, None), (weight, bias, eps))
    return values


def add_norm_(
    x: Tensor,
    out: Tensor,
    scales: Tensor | None,
    added: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    norm: tuple[Tensor, Tensor, float],
) -> Tensor:
    """Update x [tokens, dim] in place to (x + y * gate) * (1 + scale) + shift. Write the layer norm of the new x to
    `out`, and return x.

    added: (y [tokens, dim], gate [dim]). A term is left out if its tensors are None.
    affine: (scale, shift), [tokens, dim] each.
    norm: the layer norm's (weight [dim], bias [dim], epsilon).
    scales: None, or fp32 [tokens, 1] for the tokens' scales if `out` is int8 or float8_e4m3fn.
    """
    (y, gate), (weight, bias, eps) = added, norm
    gate = None if gate is None else gate.contiguous()
    with torch.cuda.device_of(x):
        sizes = token_by_token(x.shape[1])
        _add_norm[(programs(x, sizes, 4),)](
            x, out, scales, y, gate, *affine, weight.contiguous(), bias.contiguous(), *x.shape, eps, **sizes
        )
    return x


def scatter_qkv_(
    out: Tensor,
    values_out: Tensor | None,
    rows: Tensor,
    given: tuple[Tensor, Tensor, Tensor],
    norm_ropes: tuple[NormRope, NormRope],
    made: tuple[Tensor, Tensor, Tensor] | None,
    scalings: tuple[Pair, Pair] | None,
) -> Tensor:
    """Write keys, after norm and RoPE, to `out`, and values to `values_out`. Write queries, after norm and RoPE, to
    `made` or in place. Return `out`.

    given: queries, keys and values, [tokens, dim] each.
    norm_ropes: the arguments of norm and RoPE for queries and for keys.
    out, values_out: [n, dim] each. If `values_out` is None, no values are written.
    rows: the row of `out` and `values_out` to which each token is written, int64 [tokens].
    scalings: (shift [dim], factor [1]) of keys and of values, which are then written as (x - shift) * factor in
    float8_e4m3fn. None: not scaled.
    made: with `scalings`, the outputs for queries: float8_e4m3fn [tokens, dim], their scale [1] and 1 / scale [1].
    Without `scalings` it is None, and queries are replaced in place.
    """
    (q, k, v), dim, kinds = given, out.shape[1], 2 if values_out is None else 3
    (q_out, *scale), pairs = made or (q, None, None), scalings or ((None, None), (None, None))
    weights, (_, cos, sin, eps) = (norm_rope.weight.contiguous() for norm_rope in norm_ropes), norm_ropes[0]
    places, strides = (q_out, out, out if values_out is None else values_out), (x.stride(0) for x in (q, k, v, q_out))
    sizes = token_by_token(dim)
    with torch.cuda.device_of(out):
        _put_own[(programs(q, sizes, 3), kinds)](  # programs of two kinds: a multiprocessor runs six at once
            *places,
            rows,
            q,
            k,
            v,
            *weights,
            cos,
            sin,
            *scale,
            *pairs[0],
            *pairs[1],
            *strides,
            *q.shape,
            eps,
            _root(dim),
            HALF=cos.shape[1],
            **sizes,
        )
    return out


def rotated_fp8_(out: Tensor, scale: Tensor, factor: Tensor, x: Tensor, norm_rope: NormRope) -> Tensor:
    """Write x [tokens, dim], after norm and RoPE and divided by a scale, to `out` (float8_e4m3fn), and return `out`.
    The scale and 1 / scale are written to `scale` and `factor` (fp32 [1] each). The norm bounds each token, so the
    smallest power of two with which no token overflows is known in advance; it is the scale."""
    dim = x.shape[1]
    with torch.cuda.device_of(x):
        _norms_scale[(1,)](scale, factor, norm_rope.weight.contiguous(), dim, _root(dim), **token_by_token(dim))
    return pointwise.scatter_rotated_(out, None, x, norm_rope, None, factor)


def _root(dim: int) -> float:
    """Return the ratio of the smallest safe scale of 8-bit queries to the norm's largest weight, for `dim` channels. No
    query is then longer than QUERY_LENGTH after scaling."""
    return dim**0.5 / QUERY_LENGTH


def merge_fp8_(
    out: Tensor,
    scales: Tensor | None,
    parts: Tensor,
    log_sums: Tensor | None,
    rest: Tensor | None,
    rest_log_sums: Tensor | None,
    shift: Tensor,
    factor: Tensor,
) -> Tensor:
    """Write merged * factor + shift to `out` [tokens, dim], and return `out`. shift is fp32 [dim], factor fp32 [1].

    `merged` is attention over all keys, merged from `parts` [n, tokens, heads, head_dim], `log_sums`, `rest` and
    `rest_log_sums` (see `pointwise.merge_`). If `log_sums` is None, n is 1 and `merged` is `parts[0]`. If `scales`
    (fp32 [tokens, 1]) is given, `out` is int8 or float8_e4m3fn, and each token's scale is written to `scales`.

    Merging, scaling and conversion to 8 bits are separate kernels. A single kernel for all three took twice as long.
    """
    _, tokens, heads, width = parts.shape
    if log_sums is None:
        with torch.cuda.device_of(out):
            _from_fp8_rows[(tokens,)](out, scales, parts, shift, factor, heads * width, **in_two(heads * width, 1280))
        return out
    merged = out if scales is None else torch.empty_like(out, dtype=torch.bfloat16)
    pointwise.merge_(merged.unflatten(1, (heads, -1)), parts, log_sums, rest, rest_log_sums)
    in_8_bits.from_fp8_(merged, merged, shift, factor)
    return out if scales is None else in_8_bits.encode_8bit_(out, scales, merged)
