"""Conversion of queries, keys and values to 8 bits for attention without a KV cache."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from ..choice.table import CUDNN_FRONTEND, OURS
from ..choice.trials import PREQUANTIZED
from ..kernels.hopper.attention import V_BLOCK
from ..ops.pointwise import Rows
from ..ops.scatter import BeforeRope, rope_fp8, scatter_rope_, scatter_transposed_
from .choose_8bit import reads_transposed_values
from .fp8 import (
    FP8,
    Operand,
    empty_values,
    normed_key_scaling,
    sample,
    sampled_scaling,
    to_operand,
    to_operands,
    transposed_columns,
    wrap_fp8_queries,
)
from .fp8_cudnn import cudnn_attention_fp8_qkv, padding
from .fp8_hopper import hopper_attention_fp8_qkv


def norm_rope_queries(unrotated: BeforeRope) -> Operand:
    """Return queries in fp8 after norm and RoPE. `unrotated.x` may be overwritten."""
    return wrap_fp8_queries(*rope_fp8(unrotated))


def norm_rope_keys(unrotated: BeforeRope, head_dim: int) -> Operand:
    """Return keys in fp8 after norm and RoPE. If cuDNN's kernel reads them, tokens of zeros may fill the last tile."""
    some = _sampled(unrotated).apply_rope_()
    made, count, device = normed_key_scaling(unrotated.norm_rope, some), len(unrotated.x), unrotated.x.device
    values = empty_values(unrotated.x, 0 if reads_transposed_values(device, head_dim) else _zeros(unrotated.x))
    scatter_rope_(values, torch.arange(count, device=device), unrotated, made.shift_and_factor)
    return Operand(values, made)


def values_to_operand(x: Tensor, head_dim: int) -> Operand:
    """Convert values x [tokens, dim] to fp8, transposed if the attention kernel for `head_dim` reads transposed
    values."""
    if not reads_transposed_values(x.device, head_dim):
        return to_operand(x, sampled_scaling(x, x), _zeros(x))
    (count, dim), scales = x.shape, sampled_scaling(x, x)
    values = torch.empty(dim, -(-count // V_BLOCK) * V_BLOCK, dtype=FP8, device=x.device)
    values.view(torch.uint8)[:, -V_BLOCK:].zero_()  # the padding after the last token
    scatter_transposed_(values, _places(count, x.device), x, *scales.shift_and_factor)
    return Operand(values, scales, transposed_tokens=count)


def _sampled(unrotated: BeforeRope) -> BeforeRope:
    x, cos, sin = (
        sample(each).clone(memory_format=torch.contiguous_format)
        for each in (unrotated.x, unrotated.norm_rope.cos, unrotated.norm_rope.sin)
    )
    return BeforeRope(x, unrotated.norm_rope._replace(cos=cos, sin=sin))


def _zeros(x: Tensor) -> int:
    return padding(len(x)) if x.device.type == "cuda" else 0


@lru_cache(maxsize=4)
def _places(count: int, device: torch.device) -> Tensor:
    return transposed_columns(torch.arange(count, device=device))


def _without_conversion(attend: Callable[..., Rows]) -> Callable[[Tensor, Tensor, Tensor, int], Callable[[], Rows]]:
    """Return a function that prepares the timing of `attend` alone. It converts q, k and v to fp8 once, and returns a
    function without arguments that calls `attend` on them."""

    def make(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Callable[[], Rows]:
        head_dim = q.shape[-1] // heads
        zeros = 0 if reads_transposed_values(q.device, head_dim) else _zeros(k[0])
        queries, keys, _ = to_operands(q, k, v, zeros)
        return partial(attend, queries, keys, values_to_operand(v[0], head_dim), heads, q.dtype)

    return make


PREQUANTIZED["attention-8bit", OURS] = _without_conversion(hopper_attention_fp8_qkv)
PREQUANTIZED["attention-8bit", CUDNN_FRONTEND] = _without_conversion(cudnn_attention_fp8_qkv)
