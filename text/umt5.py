"""The umt5 encoder block (mT5, arXiv 2010.11934; UniMax, arXiv 2304.09151) as functions over tensors."""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.quantized.parameters import DecodedParameter

EPS = 1e-6
MAX_DISTANCE = 128


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Return T5's RMS norm of x, float32 [..., dim], times `weight` [dim]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * _float(weight)


def _float(weight: Tensor) -> Tensor:
    return weight.decode(torch.float32) if isinstance(weight, DecodedParameter) else weight.float()


def bucket_of(relative: Tensor, buckets: int) -> Tensor:
    """Return the bucket of T5's position bias for relative positions (key minus query), int64 of the same shape."""
    half, exact = buckets // 2, buckets // 4
    distance = relative.abs()
    growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(MAX_DISTANCE / exact)
    far = (exact + (growth * (half - exact)).long()).clamp(max=half - 1)
    return (relative > 0).long() * half + torch.where(distance < exact, distance, far)


def project(prompts: Sequence[Tensor], block: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> list[Tensor]:
    """Apply the block's linear layer `name` to each prompt's tensor [len, in]. Return [len, out] in `dtype`."""
    given = block[f"{name}.weight"]
    weight = given.decode(dtype) if isinstance(given, DecodedParameter) else given.to(dtype)
    return [F.linear(x.to(dtype), weight) for x in prompts]


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Return the self-attention of one prompt, float32 [len, heads*d] like q, k and v. `bias` is [heads, len, len]."""
    heads = bias.shape[0]
    q, k, v = (t.float().unflatten(-1, (heads, -1)).transpose(0, 1) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0).transpose(0, 1).flatten(1)


def encoder_block(
    prompts: Sequence[Tensor], block: Mapping[str, Tensor], buckets: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Apply one encoder block to each prompt's residual stream in `prompts`, and return the streams, float32 [len,
    dim]. `buckets` are results of `bucket_of`, int64 [len, len]. Matrix products run in `dtype`."""
    h = [rms_norm(x, block["norm1.weight"]) for x in prompts]
    qkv = [project(h, block, f"attn.{name}", dtype) for name in "qkv"]
    bias = _float(block["pos_embedding.embedding.weight"])
    heads = [attend(q, k, v, bias[index].permute(2, 0, 1)) for q, k, v, index in zip(*qkv, buckets, strict=True)]
    prompts = [x + y.float() for x, y in zip(prompts, project(heads, block, "attn.o", dtype), strict=True)]
    h = [rms_norm(x, block["norm2.weight"]) for x in prompts]
    gates = [F.gelu(gate, approximate="tanh") for gate in project(h, block, "ffn.gate.0", dtype)]
    gated = [gate * y for gate, y in zip(gates, project(h, block, "ffn.fc1", dtype), strict=True)]
    del gates
    return [x + y.float() for x, y in zip(prompts, project(gated, block, "ffn.fc2", dtype), strict=True)]
