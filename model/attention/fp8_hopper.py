"""Attention over float8_e4m3fn operands by this project's own kernel, for compute capability 9.0. The kernel returns
bf16 or 8 bits, while cuDNN's result is always rounded to 8 bits."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..kernels.hopper import attention as kernels
from ..ops.matrix_8bit import LARGEST, EightBit
from ..ops.plain import scatter_transposed_ as plain_scatter_transposed_
from ..ops.pointwise import Rows, encode_8bit
from ..ops.scatter import scatter_transposed_
from .fp8 import FP8, Operand, operands, queries_in_8_bits, transposed_columns


def hopper_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return attention [B, L, heads*128] of q over k and v [B, S, heads*128] by our own kernel. The inputs are
    converted to float8_e4m3fn; with B = 1, a contiguous bf16 q is overwritten with the result. Raises ValueError for
    another head size than 128, and RuntimeError or OSError if the kernel cannot be compiled or launched."""
    if q.shape[-1] != 128 * heads:
        raise ValueError(f"heads of {q.shape[-1] // heads}, expected 128")
    with torch.cuda.device_of(q):
        queries, keys, values = operands(q, k, v)
        if len(q) == 1:
            return _attend(queries, keys, values, heads, into=q[0]).to(q.dtype)[None]
        made = [
            _attend(_row(queries, i, len(q)), _row(keys, i, len(q)), _row(values, i, len(q)), heads)
            for i in range(len(q))
        ]
        return torch.stack(made).to(q.dtype)


def hopper_attention_to(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """Return attention of q [1, L, heads*128] over the Operands k and v (float8_e4m3fn values with their scale) by our
    own kernel, with q's shape and dtype. q is converted to float8_e4m3fn; a contiguous bf16 q is overwritten."""
    with torch.cuda.device_of(q):
        return _attend(queries_in_8_bits(q[0]), k, v, heads, into=q[0]).to(q.dtype)[None]


def hopper_attention_of(
    q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype, shares: Tensor | None = None
) -> Rows:
    """Return attention [L, heads*128] of the Operands q, k and v (float8_e4m3fn values with their scale) by our own
    kernel. The result is a tensor in `dtype`, or for int8 and float8_e4m3fn an EightBit with one scale for each token.

    shares: a mask of the latent frames in k and v, fp32 [frames]. It is 0 for each frame to attend to, and -inf for the
    frames to ignore, which must be the last frames. None means all frames.
    """
    with torch.cuda.device_of(q.values):
        if dtype == FP8 and v.scaling.reach is not None:
            return _attend_to_8_bits(q, k, v, heads, shares)
        made = _attend(q, k, v, heads, shares)
    return encode_8bit(made, dtype=dtype) if dtype in LARGEST else made.to(dtype)


@lru_cache
def transposes_exactly(device: torch.device) -> bool:
    """Return whether the kernel of `scatter_transposed_` writes the same bits as plain torch on this GPU, to adjacent
    columns and to columns in random order."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(200, 256, device=device, generator=generator).bfloat16()[:, :128]
    apart = 100 + torch.randperm(200, device=device, generator=generator)[:100]
    places = transposed_columns(torch.cat([torch.arange(100, device=device), apart]))
    scaling = x[0].float(), torch.full((1,), 16.0, device=device)
    made = [
        put(torch.zeros(128, 320, dtype=FP8, device=device), places, x, *scaling).view(torch.uint8)
        for put in (scatter_transposed_, plain_scatter_transposed_)
    ]
    return torch.equal(*made)


def _row(x: Operand, row: int, rows: int) -> Operand:
    return x._replace(values=x.values.unflatten(0, (rows, -1))[row])


def _attend_to_8_bits(q: Operand, k: Operand, v: Operand, heads: int, shares: Tensor | None) -> EightBit:
    """Return attention [tokens, heads*128] in float8_e4m3fn. All tokens have the same scale, from v's `reach`. A scale
    for each token would gain nothing, because the relative precision of a float is the same at any magnitude."""
    out = EightBit(torch.empty_like(q.values), q.scaling.scale.new_empty(len(q.values), 1))
    return kernels.attend(out, q.values, k.values, _transposed(v), heads, _scales(q, k, v), shares)


def _attend(
    q: Operand, k: Operand, v: Operand, heads: int, shares: Tensor | None = None, into: Tensor | None = None
) -> Tensor:
    """Return attention [tokens, heads*128] of q over k and v in bf16, by our own kernel. The result is written to
    `into` and `into` is returned, if it is a contiguous bf16 tensor. Otherwise the result is a new tensor. For `shares`
    see `kernels.attend`."""
    if into is None or into.dtype != torch.bfloat16 or not into.is_contiguous():
        into = torch.empty_like(q.values, dtype=torch.bfloat16)
    return kernels.attend(into, q.values, k.values, _transposed(v), heads, _scales(q, k, v), shares)


def _transposed(v: Operand) -> Tensor:
    return kernels.transpose(v.values) if v.transposed is None else v.values


def _scales(q: Operand, k: Operand, v: Operand) -> Sequence[Tensor | None]:
    return q.scaling.scale, k.scaling.scale, v.scaling.scale, v.scaling.mean, v.scaling.reach
