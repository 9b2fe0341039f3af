"""The element-wise operations of a block. Each reads and writes a token once, and computes in fp32.

The functions take the tokens of one batch element, [tokens, dim]. A function with a name that ends in _ writes into its
first argument. The environment variable `LINGBOT_POINTWISE` selects the implementation:

- triton: our Triton kernels.
- compile: torch.compile.
- eager: plain torch, 2048 tokens at a time to keep fp32 temporaries small.
- auto (default): triton if it works, else eager.
"""

import logging
import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial, wraps
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
"""The activations [tokens, width] that a layer accepts: a tensor, or a matrix in 8 bits with its scales."""


def residual_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the residual stream and of norms for the compute dtype `dtype`: fp64 for fp64, else fp32."""
    return torch.promote_types(dtype, torch.float32)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the layer norm of x [tokens, dim] over its channels, times weight plus bias ([dim] each), in `dtype`."""
    return run("layer_norm", x, weight, bias, eps, dtype)


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Replace x [tokens, dim] by its root-mean-square norm over all channels, times weight [dim]; return x."""
    return run("rms_norm_", x, weight, eps)


def rms_rope_(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Replace x [tokens, heads*head_dim] by RoPE of its root-mean-square norm times weight, and return x.

    The norm covers all heads together; weight is [heads*head_dim]. RoPE rotates adjacent pairs of channels, with the
    same cos and sin [tokens, head_dim / 2] for all heads.
    """
    return run("rms_rope_", x, weight, cos, sin, eps)


def rms_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return SiLU(RMSNorm(x) * weight) for x [rows, channels] and weight [channels]."""
    return run("rms_silu", x, weight, eps)


def gated_add_(x: Tensor, y: Tensor, gate: Tensor | None = None) -> Tensor:
    """Replace x [tokens, dim] by x + y * gate, and return x. gate is [dim] in x's dtype, or None for ones. torch's own
    `add_` of bf16 to fp32 takes 5/3 of this function's time."""
    return run("gated_add_", x, y, gate)


def affine_(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Replace x [tokens, dim] by x * (1 + scale) + shift and return x. scale and shift are [tokens, dim]."""
    return run("affine_", x, scale, shift)


def modulated(times: Tensor, weights: Tensor) -> Tensor:
    """Return a block's modulation [B, 6, dim] in the dtype of `times`: times + weights, with 1 added to both scales.

    `times` is [B, 6, dim] and `weights` [1, 6, dim]: shift, scale and gate of self-attention, then of the feed-forward.
    """
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
    """Update x [tokens, dim] in place, and return its layer norm in `dtype`.

    The update is x = x + y * gate; x = x * (1 + scale) + shift, with `added` = (y, gate) and `affine` = (scale, shift).
    A step with None tensors is skipped. y, scale and shift are [tokens, dim]; gate, weight and bias are [dim]. A result
    in int8 or float8_e4m3fn has one scale for each token.
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
    """Return y = activation(x) + added in `dtype` (int8 or float8_e4m3fn), for x and `added` [tokens, heads*head_dim].
    Each token and head has one scale: max|y| divided by the largest number of `dtype`."""
    out = _empty_8bit(x, heads, dtype)
    run("encode_8bit_", *out, x, activation, added)
    return out


def layer_norm_8bit(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> EightBit:
    """Return the layer norm of x [tokens, dim] (see `layer_norm`) in the 8-bit `dtype`, with a scale for each token."""
    out = _empty_8bit(x, 1, dtype)
    run("layer_norm_8bit_", *out, x, weight, bias, eps)
    return out


def empty_rows(x: Tensor, dtype: torch.dtype) -> Rows:
    """Return uninitialized memory for a result in `dtype` with the shape of x [tokens, dim]: an EightBit for 8 bits."""
    return _empty_8bit(x, 1, dtype) if dtype in LARGEST else torch.empty_like(x, dtype=dtype)


def _values_and_scales(rows: Rows) -> tuple[Tensor, Tensor | None]:
    return rows if isinstance(rows, EightBit) else (rows, None)


def _empty_8bit(x: Tensor, heads: int, dtype: torch.dtype) -> EightBit:
    return EightBit(torch.empty_like(x, dtype=dtype), x.new_empty(len(x), heads, dtype=torch.float32))


def decode_8bit_(out: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Write values * scales to `out` [tokens, heads*head_dim], and return `out`. `values` is int8 or float8_e4m3fn in
    the shape of `out`; `scales` is fp32 [tokens, heads]."""
    return run("decode_8bit_", out, values, scales)


def to_fp8_(out: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor to `out` (float8_e4m3fn [tokens, dim]), and return `out`. shift [dim] and factor [1]
    are fp32. Values beyond the dtype's largest number are clamped."""
    return run("to_fp8_", out, x, shift, factor)


def from_fp8_(out: Tensor, values: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write values * factor + shift to `out` [tokens, dim], and return `out`. factor [1] and shift [dim] are fp32. To
    decode the result of `to_fp8_`, pass the same shift and the inverse of its factor."""
    return run("from_fp8_", out, values, shift, factor)


def merge_fp8_(
    out: R,
    parts: Tensor,
    shift: Tensor,
    factor: Tensor,
    log_sums: Tensor | None = None,
    rest: tuple[Tensor, Tensor] | tuple[()] = (),
) -> R:
    """Write merged attention over all keys, times factor plus shift, to `out` [tokens, dim], and return `out`.

    `parts` [n, tokens, heads, head_dim] is the attention over each of n parts of the keys, with values in fp8.
    `log_sums` merges them as in `merge_`; None stands for a single part. `rest` is one more part with its logarithms,
    or empty. factor [1] and shift [dim], fp32, decode the values. An EightBit `out` gets one scale for each token.
    """
    run("merge_fp8_", *_values_and_scales(out), parts, log_sums, *(rest or (None, None)), shift, factor)
    return out


def merge_(
    out: Tensor, parts: Tensor, log_sums: Tensor, rest: Tensor | None = None, rest_log_sums: Tensor | None = None
) -> Tensor:
    """Write attention over all keys to `out` [tokens, heads, head_dim], merged from attention over parts of the keys.

    The computation is w = softmax(log_sums over the parts); out = sum(w * parts). `out` may be the first part's memory.

    parts: the attention over each of n parts of the keys, [n, tokens, heads, head_dim], contiguous.
    log_sums: the logarithms of the parts' softmax denominators, fp32 [n, heads, tokens].
    rest, rest_log_sums: one more part [1, tokens, heads, head_dim] and its logarithms, or None.
    """
    return run("merge_", out, parts, log_sums, rest, rest_log_sums)


def rescale_(out: Tensor, products: Tensor, scales: Tensor, weight_scales: Tensor, bias: Tensor | None) -> Tensor:
    """Write products * scales * weight_scales + bias to `out` [tokens, dim], and return `out`.

    `products` [tokens, dim] is the unscaled result of an 8-bit matrix product. `scales` [tokens, 1] and `weight_scales`
    [dim] are fp32; bias is [dim] or None.
    """
    return run("rescale_", out, products, scales, weight_scales, bias)


def gelu_(x: Tensor) -> Tensor:
    """Replace x by GELU(x) in the tanh form, and return x."""
    return torch.ops.aten.gelu_(x, approximate="tanh")


def slices(length: int, limit: int) -> Iterator[slice]:
    """Return slices of nearly equal length that cover `length` items. All slices except the last have a multiple of 128
    items. No slice is longer than `limit` rounded up to a multiple of 128."""
    count = -(-length // limit)
    size = -(-length // count // 128) * 128
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def run(name: str, x: Tensor, *arguments: Any) -> Tensor:
    """Run the operation `name` with the fastest implementation for the device of x, and return its result."""
    if torch.compiler.is_compiling():
        return _plain(name)(x, *arguments)
    return implementation(name, x.device.type)(x, *arguments)


def _plain(name: str) -> Callable[..., Tensor]:
    return getattr(pointwise_plain, name, None) or getattr(matrix_8bit, name)


@lru_cache
def implementation(name: str, device_type: str, mode: str | None = None) -> Callable[..., Tensor]:
    """Return the function that computes the operation `name` on a device type. `mode` is "triton", "compile", "eager"
    or "auto". None means the value of LINGBOT_POINTWISE, by default "auto"."""
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
    """Run `plain` on all tokens in one step. This is for functions that make no fp32 copies, or whose first argument
    has no row for each token."""
    return plain(x, *arguments)


def _eager_rows(outputs: int, plain: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Run `plain` on a part of the tokens at a time, and return the first output tensor.

    `arguments` begin with the `outputs` output tensors. Then comes the row of each token in the output tensors, int64
    [tokens]. The rest are matrices with a row for each token, or tuples of such matrices.
    """
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
    """Return the rows `part` of each matrix in `argument`, which may be a tuple; return anything else unchanged."""
    if isinstance(argument, tuple):
        parts = (_tokens_of(each, part) for each in argument)
        return NormRope(*parts) if isinstance(argument, NormRope) else tuple(parts)
    return argument[part] if isinstance(argument, Tensor) and argument.ndim == 2 else argument


def or_else(fast: Callable[..., T], plain: Callable[..., T], name: str) -> Callable[..., T]:
    """Return a function that calls `fast`. After the first failure of `fast`, the function always calls `plain`.

    The call in which `fast` fails also returns the result of `plain`. The failure is logged once with `name`. Running
    out of GPU memory does not count as a failure: torch.OutOfMemoryError is raised.
    """
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


def on_its_gpu(run: Callable[..., T]) -> Callable[..., T]:
    """Return `run` with the GPU of its first argument as the current one, where comfy-kitchen launches its kernels."""

    @wraps(run)
    def on_gpu(x: Tensor, *others: Any) -> T:
        with torch.cuda.device_of(x):
            return run(x, *others)

    return on_gpu


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
