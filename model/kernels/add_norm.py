"""The Triton kernel for an addition, the camera's scale and shift, and the layer norm that follows, in fp32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import matrix_8bit
from .launch import Kernel
from .matrix_8bit import _scale_8bit, _store_8bit
from .parts import _channels, _largest, _load_or_fill, _sum
from .sizes import program_count, token_loop_sizes

MAX_FULL_CHANNELS = 2048
"""The maximum number of channels for which `layer_norm_8bit_` processes a token in full, not in parts."""


@triton.jit
def _load_channels(x_ptr, y_ptr, scale_ptr, shift_ptr, at, inside):
    """Load the channels `at` and return x, y, scale and shift. If `y_ptr` is None, x is returned as y. If `scale_ptr`
    is None, x is returned as scale and shift. The caller ignores these."""
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    y, scale, shift = x, x, x
    if y_ptr is not None:
        y = tl.load(y_ptr + at, mask=inside, other=0.0)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + at, mask=inside, other=0.0)
        shift = tl.load(shift_ptr + at, mask=inside, other=0.0)
    return x, y, scale, shift


@triton.jit
def _gated_affine(x_at, y_ptr, gate_ptr, scale_ptr, loaded, gate, inside):
    """Compute (x + y * gate) * (1 + scale) + shift, store it at `x_at`, and return it in fp32. A term whose pointer is
    None is skipped; shift is skipped with scale.

    loaded: one token's x, y, scale and shift.
    gate: the values loaded from `gate_ptr`.
    inside: the mask of existing channels.
    """
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
    """The kernel of `add_norm_`. Of n programs, program i computes the tokens i, i + n, i + 2n and so on. A program
    splits a token's channels into FIRST and SECOND channels, both powers of two.

    scales_ptr: receives each token's scale of an 8-bit result.
    y_ptr, gate_ptr: first, y * gate is added to x.
    scale_ptr, shift_ptr: then x becomes x * (1 + scale) + shift, before the norm.
    """
    left, right = _channels(0, FIRST, WIDTH), _channels(FIRST, SECOND, WIDTH)
    whole, inside = left < dim, right < dim
    gate_a, gate_b = _load_or_fill(gate_ptr, left, whole, 1.0), _load_or_fill(gate_ptr, right, inside, 1.0)
    weight_a, weight_b = _load_or_fill(weight_ptr, left, whole, 1.0), _load_or_fill(weight_ptr, right, inside, 1.0)
    bias_a, bias_b = _load_or_fill(bias_ptr, left, whole, 0.0), _load_or_fill(bias_ptr, right, inside, 0.0)
    first, step = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    next_a = _load_channels(x_ptr, y_ptr, scale_ptr, shift_ptr, first * dim + left, whole)
    next_b = _load_channels(x_ptr, y_ptr, scale_ptr, shift_ptr, first * dim + right, inside)
    row = first
    while row < rows:
        given_a, given_b, after = next_a, next_b, row + step
        next_a = _load_channels(x_ptr, y_ptr, scale_ptr, shift_ptr, after * dim + left, whole & (after < rows))
        next_b = _load_channels(x_ptr, y_ptr, scale_ptr, shift_ptr, after * dim + right, inside & (after < rows))
        a = _gated_affine(x_ptr + row * dim + left, y_ptr, gate_ptr, scale_ptr, given_a, gate_a, whole)
        b = _gated_affine(x_ptr + row * dim + right, y_ptr, gate_ptr, scale_ptr, given_b, gate_b, inside)
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


def layer_norm_8bit_(values: Tensor, scales: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    if x.shape[1] > MAX_FULL_CHANNELS:
        return matrix_8bit.layer_norm_8bit_(values, scales, x, weight, bias, eps)
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
    """Replace x [tokens, dim] by (x + y * gate) * (1 + scale) + shift, and return x. Write the layer norm of the new x
    to `out`.

    scales: receives each token's quantization scale if `out` is in 8 bits; else None.
    added: y and gate; y of None skips the addition.
    affine: scale and shift in the formula for x, or None for both.
    norm: the layer norm's weight, bias and eps.
    """
    (y, gate), (weight, bias, eps) = added, norm
    gate = None if gate is None else gate.contiguous()
    with torch.cuda.device_of(x):
        sizes = token_loop_sizes(x.shape[1])
        _add_norm[(program_count(x, sizes, 4),)](
            x, out, scales, y, gate, *affine, weight.contiguous(), bias.contiguous(), *x.shape, eps, **sizes
        )
    return x
