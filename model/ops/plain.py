"""The operations of ops/pointwise.py in plain torch, except those in ops/matrix_8bit.py."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache import Pair
from .matrix_8bit import encode_8bit_, from_fp8_, layer_norm_8bit_, to_fp8_

MAX_QUERY_NORM, MAX_KEY_NORM = 128.0, 440.0
"""The maximum Euclidean norms of a query and a key after scaling to fp8. With these limits, the dot product fits into
fp16 in our Hopper kernel."""


class NormRope(NamedTuple):
    """The arguments of `rms_rope_`: weight [dim] and eps of the norm, cosines and sines [tokens, head_dim / 2]."""

    weight: Tensor
    cos: Tensor
    sin: Tensor
    eps: float


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), eps).to(dtype)


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.copy_(_rms(x, weight, eps))


def rms_rope_(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    pairs = _rms(x, weight, eps).unflatten(-1, (-1, cos.shape[-1], 2))
    even, odd = pairs.unbind(-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return x.copy_(rotated.flatten(-3))


def rms_silu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.silu(F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps), inplace=True)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)


def gated_add_(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    if gate is None:
        return x.add_(y)
    return x.addcmul_(y.to(x.dtype), gate)


def affine_(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return x.addcmul_(x, scale.to(x.dtype)).add_(shift)


def modulated(step: Tensor, block: Tensor) -> Tensor:
    made = block.to(step.device) + step
    made[:, 1::3] += 1
    return made


def scatter_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    return out.index_copy_(0, rows, x.to(out.dtype))


def scatter_fp8_(out: Tensor, rows: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    made = to_fp8_(torch.empty_like(x, dtype=out.dtype), x, shift, factor)
    out.view(torch.uint8).index_copy_(0, rows, made.view(torch.uint8))  # torch cannot index rows of 8-bit floats
    return out


def scatter_transposed_(out: Tensor, columns: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    made = to_fp8_(torch.empty_like(x, dtype=out.dtype), x, shift, factor)
    out.view(torch.uint8).index_copy_(1, columns, made.view(torch.uint8).T)
    return out


def merge_(out: Tensor, parts: Tensor, log_sums: Tensor, rest: Tensor | None, rest_log_sums: Tensor | None) -> Tensor:
    if rest is not None and rest_log_sums is not None:
        parts, log_sums = (torch.cat(pair).float() for pair in ((parts, rest), (log_sums, rest_log_sums)))
    shares = log_sums.softmax(0).transpose(1, 2).unsqueeze(-1)
    return out.copy_((parts.float() * shares).sum(0))


def add_norm_(
    x: Tensor,
    out: Tensor,
    scales: Tensor | None,
    added: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    norm: tuple[Tensor, Tensor, float],
) -> Tensor:
    (y, gate), (scale, shift) = added, affine
    if y is not None:
        gated_add_(x, y, gate)
    if scale is not None and shift is not None:
        affine_(x, scale, shift)
    if scales is None:
        out.copy_(layer_norm(x, *norm, out.dtype))
    else:
        layer_norm_8bit_(out, scales, x, *norm)
    return x


def scatter_rope_(
    out: Tensor, rows: Tensor, x: Tensor, norm_rope: NormRope, shift: Tensor | None, factor: Tensor | None
) -> Tensor:
    rms_rope_(x, *norm_rope)
    return scatter_(out, rows, x) if shift is None or factor is None else scatter_fp8_(out, rows, x, shift, factor)


def scatter_qkv_(
    out: Tensor,
    values_out: Tensor | None,
    rows: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    norm_ropes: tuple[NormRope, NormRope],
    fp8_queries: tuple[Tensor, Tensor, Tensor] | None,
    scalings: tuple[Pair, Pair] | None,
) -> Tensor:
    q, k, v = qkv
    if fp8_queries is None or scalings is None:
        rms_rope_(q, *norm_ropes[0])
        scatter_rope_(out, rows, k, norm_ropes[1], None, None)
        return out if values_out is None else scatter_(values_out, rows, v)
    rope_fp8_(*fp8_queries, q, norm_ropes[0])
    scatter_rope_(out, rows, k, norm_ropes[1], *scalings[0])
    return out if values_out is None else scatter_fp8_(values_out, rows, v, *scalings[1])


def rope_fp8_(out: Tensor, scale: Tensor, factor: Tensor, x: Tensor, norm_rope: NormRope) -> Tensor:
    bound = norm_rope.weight.float().abs().amax().clamp_min(1e-30) * (x.shape[-1] ** 0.5 / MAX_QUERY_NORM)
    scale.copy_(torch.exp2(torch.log2(bound).ceil()))
    factor.copy_(1 / scale)
    return to_fp8_(out, rms_rope_(x, *norm_rope), torch.zeros_like(scale), factor)


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
    whole = log_sums is None or scales is None  # several parts that become 8 bits are merged in bf16
    made = torch.empty_like(parts[0], dtype=torch.float32 if whole else torch.bfloat16)
    if log_sums is None:
        made.copy_(parts[0])
    else:
        merge_(made, parts.float(), log_sums, None if rest is None else rest.float(), rest_log_sums)
    x = from_fp8_(made.flatten(1), made.flatten(1), shift, factor)
    return out.copy_(x) if scales is None else encode_8bit_(out, scales, x)
