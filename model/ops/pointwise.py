"""The element-wise operations of a block on [tokens, dim], each in fp32 and in one pass over memory."""

from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from .implementation import run
from .matrix_8bit import LARGEST, Activation, EightBit

R = TypeVar("R", bound=Tensor | EightBit)
Rows: TypeAlias = Tensor | EightBit
"""The activations [tokens, width] that a layer accepts: a tensor, or a matrix in 8 bits."""


def residual_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the residual stream and of norms: fp32 as under the official code's autocast, or fp64 for an
    fp64 model."""
    return torch.promote_types(dtype, torch.float32)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the layer norm of x [tokens, dim] over its channels, times weight plus bias ([dim] each), in `dtype`."""
    return run("layer_norm", x, weight, bias, eps, dtype)


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Replace x [tokens, dim] by RMSNorm(x) * weight [dim] over all channels, and return x."""
    return run("rms_norm_", x, weight, eps)


def rms_rope_(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Replace x [tokens, heads*head_dim] by RoPE(RMSNorm(x) * weight), and return x. The norm covers all heads. RoPE
    rotates adjacent channels by cos and sin [tokens, head_dim / 2]."""
    return run("rms_rope_", x, weight, cos, sin, eps)


def rms_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return SiLU(RMSNorm(x) * weight) for x [rows, channels] and weight [channels]."""
    return run("rms_silu", x, weight, eps)


def gated_add_(x: Tensor, y: Tensor, gate: Tensor | None = None) -> Tensor:
    """Replace x [tokens, dim] by x + y * gate, and return x. gate is [dim] in x's dtype, or None for ones."""
    return run("gated_add_", x, y, gate)


def affine_(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Replace x [tokens, dim] by x * (1 + scale) + shift and return x. scale and shift are [tokens, dim]."""
    return run("affine_", x, scale, shift)


def modulated(step: Tensor, block: Tensor) -> Tensor:
    """Return step [B, 6, dim] + block [1, 6, dim], with 1 already added to both scales. The six rows are shift, scale
    and gate of self-attention, then of the feed-forward."""
    return run("modulated", step, block)


def add_norm(
    x: Tensor,
    added: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> Rows:
    """Replace x [tokens, dim] by (x + y * gate) * (1 + scale) + shift. Return layer_norm(x) * weight + bias for the new
    x, in `dtype`. weight and bias are [dim].

    added: (y [tokens, dim], gate [dim]); y of None skips the addition, gate of None is 1.
    affine: (scale, shift), [tokens, dim] each, or None for both.
    """
    out = empty_rows(x, dtype)
    run("add_norm_", x, *_values_and_scales(out), added, affine, (weight, bias, eps))
    return out


def encode_8bit(
    x: Tensor,
    heads: int = 1,
    dtype: torch.dtype = torch.int8,
    activation: Activation = "none",
    added: Tensor | None = None,
) -> EightBit:
    """Return activation(x) + added [tokens, heads*head_dim] in `dtype` (int8 or float8_e4m3fn), with a scale for each
    token and head."""
    out = _empty_8bit(x, heads, dtype)
    run("encode_8bit_", *out, x, activation, added)
    return out


def layer_norm_8bit(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> EightBit:
    """Return `layer_norm` of x [tokens, dim] in the 8-bit `dtype`, with a scale for each token."""
    out = _empty_8bit(x, 1, dtype)
    run("layer_norm_8bit_", *out, x, weight, bias, eps)
    return out


def empty_rows(x: Tensor, dtype: torch.dtype) -> Rows:
    """Return uninitialized memory in the shape of x [tokens, dim]: an EightBit if `dtype` has 8 bits, else a Tensor."""
    return _empty_8bit(x, 1, dtype) if dtype in LARGEST else torch.empty_like(x, dtype=dtype)


def _values_and_scales(rows: Rows) -> tuple[Tensor, Tensor | None]:
    return rows if isinstance(rows, EightBit) else (rows, None)


def _empty_8bit(x: Tensor, heads: int, dtype: torch.dtype) -> EightBit:
    return EightBit(torch.empty_like(x, dtype=dtype), x.new_empty(len(x), heads, dtype=torch.float32))


def decode_8bit_(out: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Write values * scales to `out` [tokens, heads*head_dim], and return `out`. `scales` is fp32 [tokens, heads]."""
    return run("decode_8bit_", out, values, scales)


def to_fp8_(out: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor to `out` (float8_e4m3fn [tokens, dim]), clamped, and return `out`. shift [dim] and
    factor [1] are fp32."""
    return run("to_fp8_", out, x, shift, factor)


def from_fp8_(out: Tensor, values: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write values * factor + shift to `out` [tokens, dim], and return `out`. To invert `to_fp8_`, pass the same shift,
    and the reciprocal of the factor passed to `to_fp8_`."""
    return run("from_fp8_", out, values, shift, factor)


def merge_fp8_(
    out: R,
    parts: Tensor,
    shift: Tensor,
    factor: Tensor,
    log_sums: Tensor | None = None,
    rest: tuple[Tensor, Tensor] | tuple[()] = (),
) -> R:
    """Merge fp8 attention over parts of the keys, weighted by softmax(log_sums). Write merged * factor + shift to `out`
    [tokens, dim], a Tensor or EightBit, and return `out`.

    shift, factor: fp32 [dim] and [1], which undo the fp8 scaling of the values.
    parts: attention over each of n parts of the keys, [n, tokens, heads, head_dim].
    log_sums: logarithms of the softmax denominators, fp32 [n, heads, tokens]; None for a single part.
    rest: attention over one more part and its log_sums, in tensors of their own; or ().
    """
    run("merge_fp8_", *_values_and_scales(out), parts, log_sums, *(rest or (None, None)), shift, factor)
    return out


def merge_(
    out: Tensor, parts: Tensor, log_sums: Tensor, rest: Tensor | None = None, rest_log_sums: Tensor | None = None
) -> Tensor:
    """Merge attention results over parts of the keys into attention over all keys, weighted by softmax(log_sums). Write
    the result to `out` [tokens, heads, head_dim], and return `out`.

    parts: attention over each of n parts of the keys, [n, tokens, heads, head_dim], contiguous.
    log_sums: logarithms of the softmax denominators, fp32 [n, heads, tokens].
    rest: one more part, or None.
    """
    return run("merge_", out, parts, log_sums, rest, rest_log_sums)


def rescale_(out: Tensor, products: Tensor, scales: Tensor, weight_scales: Tensor, bias: Tensor | None) -> Tensor:
    """Write products * scales * weight_scales + bias to `out` [tokens, dim], and return `out`. `scales` [tokens, 1] and
    `weight_scales` [dim] are fp32."""
    return run("rescale_", out, products, scales, weight_scales, bias)


def gelu_(x: Tensor) -> Tensor:
    """Replace x by GELU(x) in the tanh form, and return x."""
    return torch.ops.aten.gelu_(x, approximate="tanh")
