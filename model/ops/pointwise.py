"""The element-wise operations of a block: one pass each over a batch element's tokens, in fp32 without fp32 copies.

Every function takes the tokens of one batch element, [tokens, dim]. A function whose name ends in _ writes into its
first argument. `LINGBOT_POINTWISE` chooses the implementation: `triton` (hand-written kernels, on a GPU), `compile`
(torch.compile), `eager` (plain torch, 2048 tokens at a time, so that fp32 temporaries stay small), or `auto` (triton if
it works, else eager). Tests compare the three."""

import logging
import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from ...options import T
from ..choice.table import TRITON
from ..choice.trials import KINDS, Kind, Size, attempt
from . import matrix_8bit
from . import plain as pointwise_plain
from .matrix_8bit import LARGEST, Activation, EightBit
from .plain import NormRope

EAGER_TOKENS = 2048

R = TypeVar("R", bound=Tensor | EightBit)
Rows: TypeAlias = Tensor | EightBit
"""The activations [tokens, width] that a layer takes: a tensor or an 8-bit matrix."""


def residual_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the residual stream and of statistics for a compute dtype: fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the layer norm of x over its last dimension, times weight plus bias ([dim] each), as `dtype`."""
    return run("layer_norm", x, weight, bias, eps, dtype)


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Replace x by its root-mean-square norm over the full width, times weight [dim]."""
    return run("rms_norm_", x, weight, eps)


def rms_rope_(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Apply `rms_norm_` to x [tokens, heads * head_dim], then RoPE in interleaved pairs, in place; return x.

    weight is [heads * head_dim]. cos and sin [tokens, head_dim / 2] are of the rotation angles, the same for all heads.
    """
    return run("rms_rope_", x, weight, cos, sin, eps)


def rms_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return SiLU of x's root-mean-square norm over its last dimension, times weight [dim]."""
    return run("rms_silu", x, weight, eps)


def gated_add_(x: Tensor, y: Tensor, gate: Tensor | None = None) -> Tensor:
    """Replace x by x + y * gate; gate [dim] in x's dtype or None for ones.

    torch's `add_` of bf16 to fp32 takes 5/3 of the time."""
    return run("gated_add_", x, y, gate)


def affine_(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Replace x by x * (1 + scale) + shift; scale and shift [tokens, dim]."""
    return run("affine_", x, scale, shift)


def modulated(times: Tensor, weights: Tensor) -> Tensor:
    """Return a block's shift, scale and gate, twice, [B, 6, dim] in the dtype of `times`.

    They are the sum of `times` [B, 6, dim] and the block's `weights` [1, 6, dim], plus 1 for the scales."""
    return run("modulated", times, weights)


def add_norm(
    x: Tensor,
    added: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> Rows:
    """Apply `gated_add_` of `added` to x, then `affine_`, each unless it is None; return the `layer_norm` of x.

    The result is in `dtype`, or in 8 bits with one scale a token."""
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
    """Return x [tokens, heads*head_dim], or an activation function of x, plus `added`, in 8 bits.

    The largest magnitude of each token and head becomes the largest number of `dtype`."""
    out = _empty_8bit(x, heads, dtype)
    run("encode_8bit_", *out, x, activation, added)
    return out


def layer_norm_8bit(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> EightBit:
    """Return `layer_norm` in 8 bits with one scale a token."""
    out = _empty_8bit(x, 1, dtype)
    run("layer_norm_8bit_", *out, x, weight, bias, eps)
    return out


def empty_rows(x: Tensor, dtype: torch.dtype) -> Rows:
    """Return memory in the shape of x, as `dtype`; in 8 bits with one scale a token."""
    return _empty_8bit(x, 1, dtype) if dtype in LARGEST else torch.empty_like(x, dtype=dtype)


def _values_and_scales(rows: Rows) -> tuple[Tensor, Tensor | None]:
    return rows if isinstance(rows, EightBit) else (rows, None)


def _empty_8bit(x: Tensor, heads: int, dtype: torch.dtype) -> EightBit:
    return EightBit(torch.empty_like(x, dtype=dtype), x.new_empty(len(x), heads, dtype=torch.float32))


def decode_8bit_(out: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Decode a result of `encode_8bit` into `out` [tokens, heads*head_dim]."""
    return run("decode_8bit_", out, values, scales)


def to_fp8_(out: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor to `out`, float8_e4m3fn; x [tokens, dim], shift [dim] and factor [1] in fp32.

    Values beyond the dtype's largest number are clamped to it."""
    return run("to_fp8_", out, x, shift, factor)


def from_fp8_(out: Tensor, values: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write values * factor + shift to `out` [tokens, dim]: the inverse of `to_fp8_`, which wrote `values`."""
    return run("from_fp8_", out, values, shift, factor)


def merge_fp8_(
    out: R,
    parts: Tensor,
    shift: Tensor,
    factor: Tensor,
    log_sums: Tensor | None = None,
    rest: tuple[Tensor, Tensor] | tuple[()] = (),
) -> R:
    """Write `from_fp8_` of the `merge_` of fp8 `parts` and a `rest` to `out` [tokens, dim].

    Without `log_sums` there is only one part. An EightBit gets one scale a token."""
    run("merge_fp8_", *_values_and_scales(out), parts, log_sums, *(rest or (None, None)), shift, factor)
    return out


def merge_(
    out: Tensor, parts: Tensor, log_sums: Tensor, rest: Tensor | None = None, rest_log_sums: Tensor | None = None
) -> Tensor:
    """Merge attention to parts of the keys into attention to all keys: `out` [tokens, heads, head_dim].

    `out` may be the first part. `parts` [n, tokens, heads, head_dim], contiguous, has a result for each part of the
    keys; `log_sums` [n, heads, tokens], fp32, are the logarithms of the softmax's denominators. `rest` is one more part
    with its own."""
    return run("merge_", out, parts, log_sums, rest, rest_log_sums)


def rescale_(out: Tensor, products: Tensor, scales: Tensor, weight_scales: Tensor, bias: Tensor | None) -> Tensor:
    """Write products * scales * weight_scales + bias to `out` [tokens, dim].

    `products` are int32 sums of int8 products. The fp32 scales are one for each token [tokens, 1] and one for each
    channel [dim]; bias is [dim] or None."""
    return run("rescale_", out, products, scales, weight_scales, bias)


def gelu_(x: Tensor) -> Tensor:
    """Apply GELU (tanh form) in place."""
    return torch.ops.aten.gelu_(x, approximate="tanh")


def slices(length: int, limit: int) -> Iterator[slice]:
    """Return slices that cover `length`, nearly equal, at most `limit` long; all but the last multiples of 128."""
    count = -(-length // limit)
    size = -(-length // count // 128) * 128
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def run(name: str, x: Tensor, *arguments: Any) -> Tensor:
    """Run the named operation by the fastest implementation for x."""
    if torch.compiler.is_compiling():
        return _plain(name)(x, *arguments)
    return implementation(name, x.device.type)(x, *arguments)


def _plain(name: str) -> Callable[..., Tensor]:
    return getattr(pointwise_plain, name, None) or getattr(matrix_8bit, name)


@lru_cache
def implementation(name: str, device_type: str, mode: str | None = None) -> Callable[..., Tensor]:
    """Return the function that runs `name` on a device type in `mode`, by default the mode in LINGBOT_POINTWISE."""
    mode, plain = mode or os.environ.get("LINGBOT_POINTWISE", "auto"), _plain(name)
    eager = partial(_EAGER.get(name, _eager_in_place), plain)
    if mode == "compile":
        return or_else(torch.compile(plain, dynamic=True), eager, name)
    if mode in ("auto", "triton") and device_type == "cuda" and find_spec("triton"):
        from ..kernels import fused, pointwise
        from ..kernels import matrix_8bit as eight_bit
        from ..kernels.hopper import attention as attention_hopper

        places = fused, pointwise, eight_bit, attention_hopper
        kernel = next(getattr(each, name) for each in places if hasattr(each, name))
        return or_else(kernel, eager, name)
    return eager


def _eager_layer_norm(plain: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    if len(x) <= EAGER_TOKENS:
        return plain(x, *arguments)
    out = torch.empty_like(x, dtype=arguments[-1])
    for part in slices(len(x), EAGER_TOKENS):
        out[part] = plain(x[part], *arguments)
    return out


def _eager_in_place(plain: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    if len(x) <= EAGER_TOKENS:
        return plain(x, *arguments)
    for part in slices(len(x), EAGER_TOKENS):
        plain(x[part], *(_tokens_of(argument, part) for argument in arguments))
    return x


def _eager_whole(plain: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    """Run on all tokens at once, for a function that makes no fp32 copies or has no tokens as its first argument."""
    return plain(x, *arguments)


def _eager_rows(outputs: int, plain: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Run part by part: `outputs` tensors to write to, the rows to write, then arguments with a row for each token."""
    out, (rows, *others) = arguments[:outputs], arguments[outputs:]
    for part in slices(len(rows), EAGER_TOKENS):
        plain(*out, rows[part], *(_tokens_of(argument, part) for argument in others))
    return out[0]


_EAGER: dict[str, Callable[..., Tensor]] = {
    "layer_norm": _eager_layer_norm,
    "rms_silu": _eager_whole,
    "modulated": _eager_whole,
    "scatter_": _eager_whole,
    "scatter_fp8_": _eager_whole,
    "scatter_transposed_": _eager_whole,
    "merge_": _eager_whole,
    "merge_fp8_": _eager_whole,
    "scatter_rotated_": partial(_eager_rows, 1),
    "scatter_qkv_": partial(_eager_rows, 2),
}


def _tokens_of(argument: Any, part: slice) -> Any:
    """Return the part of an argument that has a row for each token, also within a tuple; other arguments unchanged."""
    if isinstance(argument, tuple):
        parts = (_tokens_of(each, part) for each in argument)
        return NormRope(*parts) if isinstance(argument, NormRope) else tuple(parts)
    return argument[part] if isinstance(argument, Tensor) and argument.ndim == 2 else argument


def or_else(fast: Callable[..., T], plain: Callable[..., T], name: str) -> Callable[..., T]:
    """Return `fast`, replaced by `plain` once `fast` fails (no compiler, an unknown device). Log the failure once."""
    broken = False

    def run(*arguments: Any) -> T:
        nonlocal broken
        if not broken:
            try:
                return fast(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as reason:
                broken = True
                logging.warning("%s runs in plain torch, slower: %s", name, reason)
        return plain(*arguments)

    return run


def _random_norm(device: torch.device, size: Size) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    shapes = (size.rows, size.dim), (size.dim,), (size.dim,)
    x, weight, bias = (torch.randn(shape, device=device, generator=generator) for shape in shapes)
    return x, weight, bias


def _norm_by(mode: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda x, weight, bias: implementation("layer_norm", x.device.type, mode)(x, weight, bias, 1e-6, x.dtype)


KINDS["norms"] = Kind(
    _random_norm, lambda x, weight, bias: pointwise_plain.layer_norm(x, weight, bias, 1e-6, x.dtype), 1e-3
)
attempt("norms", TRITON)(_norm_by("triton"))
attempt("norms", "torch")(_norm_by("torch"))
