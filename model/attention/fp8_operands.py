"""Conversion of queries, keys and values to 8 bits for attention without a KV cache. With a KV cache, kv/cache.py
converts them. A single kernel applies norm, RoPE and conversion, so each tensor is read once."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from ..choice.table import CUDNN_FRONTEND, OURS
from ..choice.trials import ALONE
from ..kernels.hopper.attention import TURNED
from ..ops.pointwise import Rows
from ..ops.scatter import Unrotated, rotated_fp8, scatter_rotated_, scatter_transposed_
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


def own_queries(given: Unrotated) -> Operand:
    """Apply norm and RoPE to queries, and return them as an Operand (fp8 values with their scale). The scale follows
    from the norm's weight alone, because the weight bounds a query's length. `given.x` may be overwritten."""
    return by_norm(*rotated_fp8(given))


def own_keys(given: Unrotated, head_dim: int) -> Operand:
    """Return keys, after norm and RoPE and minus their estimated mean, as an Operand (fp8 values with their scale).
    `head_dim` is needed to find the attention kernel. For cuDNN's kernel, tokens of zeros may be appended."""
    some = _sampled(given).rotated()
    made, count, device = scaling_of_keys(given.norm_rope, some), len(given.x), given.x.device
    values = empty_values(given.x, 0 if takes_transposed_values(device, head_dim) else _zeros(given.x))
    scatter_rotated_(values, torch.arange(count, device=device), given, made.shift_and_factor)
    return Operand(values, made)


def own_values(x: Tensor, head_dim: int) -> Operand:
    """Return values x [tokens, dim], minus their mean, as an Operand (fp8 values with their scale). The Operand is
    transposed if the GPU's attention kernel for `head_dim` requires it."""
    if not takes_transposed_values(x.device, head_dim):
        return operand(x, scaling(x, x), _zeros(x))
    (count, dim), scales = x.shape, scaling(x, x)
    values = torch.empty(dim, -(-count // TURNED) * TURNED, dtype=FP8, device=x.device)
    values.view(torch.uint8)[:, -TURNED:].zero_()  # the padding after the last token
    scatter_transposed_(values, _places(count, x.device), x, *scales.shift_and_factor)
    return Operand(values, scales, transposed=count)


def _sampled(given: Unrotated) -> Unrotated:
    """Return a sample of the tokens of `given` (queries or keys before norm and RoPE), copied to new memory."""
    x, cos, sin = (
        sample(each).clone(memory_format=torch.contiguous_format)
        for each in (given.x, given.norm_rope.cos, given.norm_rope.sin)
    )
    return Unrotated(x, given.norm_rope._replace(cos=cos, sin=sin))


def _zeros(x: Tensor) -> int:
    """Return the number of zero tokens to append to keys or values x [tokens, dim]. On CUDA it is `padding(tokens)`:
    cuDNN's kernel is faster with full tiles of keys, and does not mask the zeros. On other devices it is 0."""
    return padding(len(x)) if x.device.type == "cuda" else 0


@lru_cache(maxsize=4)
def _places(count: int, device: torch.device) -> Tensor:
    return transposed_columns(torch.arange(count, device=device))


def _alone(attend: Callable[..., Rows]) -> Callable[[Tensor, Tensor, Tensor, int], Callable[[], Rows]]:
    """Return a function make(q, k, v, heads) for the table `ALONE` in choice/trials.py. `make` converts a test's q, k
    and v to 8 bits, and returns a function to time, which only runs the kernel `attend`."""

    def make(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Callable[[], Rows]:
        head_dim = q.shape[-1] // heads
        zeros = 0 if takes_transposed_values(q.device, head_dim) else _zeros(k[0])
        queries, keys, _ = operands(q, k, v, zeros)
        return partial(attend, queries, keys, own_values(v[0], head_dim), heads, q.dtype)

    return make


ALONE["attention-8bit", OURS] = _alone(hopper_attention_of)
ALONE["attention-8bit", CUDNN_FRONTEND] = _alone(cudnn_attention_of)
