"""Attention over float8_e4m3fn operands by our own Hopper kernel, which returns bf16 or 8 bits."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..kernels.hopper import attention as kernels
from ..ops.matrix_8bit import LARGEST, EightBit
from ..ops.plain import scatter_transposed_ as plain_scatter_transposed_
from ..ops.pointwise import Rows, encode_8bit
from ..ops.scatter import scatter_transposed_
from .fp8 import FP8, Operand, queries_to_operand, to_operands, transposed_columns


def hopper_attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return 8-bit attention of q [B, L, heads*128] over k and v [B, S, heads*128]. A contiguous bf16 q may be
    overwritten. Raise ValueError for another head size."""
    if q.shape[-1] != 128 * heads:
        raise ValueError(f"heads of {q.shape[-1] // heads}, expected 128")
    with torch.cuda.device_of(q):
        queries, keys, values = to_operands(q, k, v)
        if len(q) == 1:
            return _attend(queries, keys, values, heads, into=q[0]).to(q.dtype)[None]
        made = [
            _attend(_row(queries, i, len(q)), _row(keys, i, len(q)), _row(values, i, len(q)), heads)
            for i in range(len(q))
        ]
        return torch.stack(made).to(q.dtype)


def hopper_attention_fp8_kv(q: Tensor, k: Operand, v: Operand, heads: int) -> Tensor:
    """Return attention of q [1, L, heads*128] over fp8 k and v, in q's dtype. A contiguous bf16 q is overwritten."""
    with torch.cuda.device_of(q):
        return _attend(queries_to_operand(q[0]), k, v, heads, into=q[0]).to(q.dtype)[None]


def hopper_attention_fp8_qkv(
    q: Operand, k: Operand, v: Operand, heads: int, dtype: torch.dtype, frame_mask: Tensor | None = None
) -> Rows:
    """Attend to fp8 k and v with fp8 q. Return the result [L, heads*128] in `dtype`. For `frame_mask` see
    `attend_to_frames`."""
    with torch.cuda.device_of(q.values):
        if dtype == FP8 and v.scaling.bound is not None:
            return _attend_with_fp8_result(q, k, v, heads, frame_mask)
        made = _attend(q, k, v, heads, frame_mask)
    return encode_8bit(made, dtype=dtype) if dtype in LARGEST else made.to(dtype)


@lru_cache
def transposes_exactly(device: torch.device) -> bool:
    """Return whether the kernel of `scatter_transposed_` writes the same bits as plain torch on this GPU."""
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


def _attend_with_fp8_result(q: Operand, k: Operand, v: Operand, heads: int, frame_mask: Tensor | None) -> EightBit:
    """Return attention [tokens, heads*128] in float8_e4m3fn. All tokens have one scale, computed from
    `v.scaling.bound`, the upper bound of v's magnitudes.

    frame_mask: fp32 [frames], 0 for visible latent frames, -inf for hidden ones; None: all are visible.
    """
    out = EightBit(torch.empty_like(q.values), q.scaling.scale.new_empty(len(q.values), 1))
    return kernels.attend(out, q.values, k.values, _transposed(v), heads, _scales(q, k, v), frame_mask)


def _attend(
    q: Operand, k: Operand, v: Operand, heads: int, frame_mask: Tensor | None = None, into: Tensor | None = None
) -> Tensor:
    """Return attention [tokens, heads*128] in bf16.

    frame_mask: fp32 [frames], 0 for visible latent frames, -inf for hidden ones; None: all are visible.
    into: receives the result if contiguous and bf16; else ignored, and the result is newly allocated.
    """
    if into is None or into.dtype != torch.bfloat16 or not into.is_contiguous():
        into = torch.empty_like(q.values, dtype=torch.bfloat16)
    return kernels.attend(into, q.values, k.values, _transposed(v), heads, _scales(q, k, v), frame_mask)


def _transposed(v: Operand) -> Tensor:
    return kernels.transpose(v.values) if v.transposed_tokens is None else v.values


def _scales(q: Operand, k: Operand, v: Operand) -> Sequence[Tensor | None]:
    return q.scaling.scale, k.scaling.scale, v.scaling.scale, v.scaling.mean, v.scaling.bound
