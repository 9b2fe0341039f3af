"""The type of 8-bit matrices, and the plain torch code that quantizes, dequantizes and rescales them."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The number to which quantization scales the largest magnitude, for each 8-bit dtype."""

Activation = Literal["none", "gelu", "silu"]
"""The name of an activation function; "gelu" is the tanh form."""


class EightBit(NamedTuple):
    """A matrix in 8 bits: `values` [rows, heads*width] times fp32 `scales` [rows, heads]. A matrix without heads has
    heads = 1."""

    values: Tensor
    scales: Tensor


def encode_8bit_(
    values: Tensor, scales: Tensor, x: Tensor, activation: Activation = "none", added: Tensor | None = None
) -> Tensor:
    x = x.float()
    if activation != "none":
        x = F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")
    if added is not None:
        x = x + added.float()
    heads = x.unflatten(-1, (scales.shape[-1], -1))
    scales.copy_(heads.abs().amax(-1).clamp_min(1e-30) / LARGEST[values.dtype])
    heads = heads / scales[..., None]
    return values.copy_((heads.round() if values.dtype == torch.int8 else heads).flatten(-2))


def layer_norm_8bit_(values: Tensor, scales: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return encode_8bit_(values, scales, F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), eps))


def rescale_(out: Tensor, products: Tensor, scales: Tensor, weight_scales: Tensor, bias: Tensor | None) -> Tensor:
    scaled = products.float() * scales * weight_scales
    return out.copy_(scaled if bias is None else scaled + bias)


def decode_8bit_(out: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    return out.copy_((values.unflatten(-1, (scales.shape[-1], -1)) * scales[..., None]).flatten(-2))


def from_fp8_(out: Tensor, values: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    return out.copy_(values.float() * factor + shift)


def to_fp8_(out: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    largest = LARGEST[out.dtype]
    return out.copy_(((x.float() - shift) * factor).clamp_(-largest, largest))
