"""Conversion of queries, keys and values to 8 bits for attention without a KV cache."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from ..choice.table import CUDNN_FRONTEND, OURS
from ..choice.trials import PREQUANTIZED
from ..kernels.hopper.attention import V_BLOCK
from ..ops.pointwise import Rows
from ..ops.scatter import BeforeRope, rotated_fp8, scatter_rotated_, scatter_transposed_
from .choose_8bit import takes_transposed_values
from .fp8 import (
    FP8,
    Operand,
    by_norm,
    empty_values,
    operand,
    operands,
    sample,
    scaling,
    scaling_of_keys,
    transposed_columns,
)
from .fp8_cudnn import cudnn_attention_of, padding
from .fp8_hopper import hopper_attention_of


def own_queries(given: BeforeRope) -> Operand:
    """Return queries in fp8 after norm and RoPE. `given.x` may be overwritten."""
    return by_norm(*rotated_fp8(given))


def own_keys(given: BeforeRope, head_dim: int) -> Operand:
    """Return keys in fp8 after norm and RoPE, padded with tokens of zeros where cuDNN's kernel needs padding."""
    some = _sampled(given).with_rope()
    made, count, device = scaling_of_keys(given.norm_rope, some), len(given.x), given.x.device
    values = empty_values(given.x, 0 if takes_transposed_values(device, head_dim) else _zeros(given.x))
    scatter_rotated_(values, torch.arange(count, device=device), given, made.shift_and_factor)
    return Operand(values, made)


def own_values(x: Tensor, head_dim: int) -> Operand:
    """Return values x [tokens, dim] in fp8, transposed if the attention kernel for `head_dim` requires it."""
    if not takes_transposed_values(x.device, head_dim):
        return operand(x, scaling(x, x), _zeros(x))
    (count, dim), scales = x.shape, scaling(x, x)
    values = torch.empty(dim, -(-count // V_BLOCK) * V_BLOCK, dtype=FP8, device=x.device)
    values.view(torch.uint8)[:, -V_BLOCK:].zero_()  # the padding after the last token
    scatter_transposed_(values, _places(count, x.device), x, *scales.shift_and_factor)
    return Operand(values, scales, transposed_tokens=count)


def _sampled(given: BeforeRope) -> BeforeRope:
    x, cos, sin = (
        sample(each).clone(memory_format=torch.contiguous_format)
        for each in (given.x, given.norm_rope.cos, given.norm_rope.sin)
    )
    return BeforeRope(x, given.norm_rope._replace(cos=cos, sin=sin))


def _zeros(x: Tensor) -> int:
    return padding(len(x)) if x.device.type == "cuda" else 0


@lru_cache(maxsize=4)
def _places(count: int, device: torch.device) -> Tensor:
    return transposed_columns(torch.arange(count, device=device))


def _prequantized(attend: Callable[..., Rows]) -> Callable[[Tensor, Tensor, Tensor, int], Callable[[], Rows]]:
    """Return a function that converts q, k and v to fp8, and returns a function that runs only `attend`, for timing."""

    def make(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Callable[[], Rows]:
        head_dim = q.shape[-1] // heads
        zeros = 0 if takes_transposed_values(q.device, head_dim) else _zeros(k[0])
        queries, keys, _ = operands(q, k, v, zeros)
        return partial(attend, queries, keys, own_values(v[0], head_dim), heads, q.dtype)

    return make


PREQUANTIZED["attention-8bit", OURS] = _prequantized(hopper_attention_of)
PREQUANTIZED["attention-8bit", CUDNN_FRONTEND] = _prequantized(cudnn_attention_of)
