"""Encoding and decoding of ComfyUI's 8-bit weights, with a single scale or one scale for each row."""

import torch
from torch import Tensor

from ..ops.implementation import slices
from ..ops.matrix_8bit import LARGEST, EightBit
from ..ops.pointwise import encode_8bit

_ROWS = 256
"""The maximum number of rows converted to float32 at a time."""


def decode(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return an 8-bit weight [out, in], decoded to `dtype`. `scale` is a single number, [out, 1], or None."""
    if scale is None:
        return values.to(dtype)
    if values.dtype == torch.int8:
        return values.float().mul_(scale).to(dtype)
    return values.to(dtype).mul_(scale.to(dtype))


def recode(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> EightBit:
    """Return the weight `values` [out, in] * `scale` in the 8-bit `dtype`, with a scale for each row. The input `scale`
    is a single number or [out, 1]. None means 1."""
    scales = torch.ones((), device=values.device) if scale is None else scale.float()
    if values.dtype == dtype:
        return EightBit(values, scales.expand(len(values), 1).contiguous())
    return encode_8bit(values.float() * scales, dtype=dtype)


def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight in float8_e4m3fn, and its single scale: a float32 number that is a power of two."""
    largest = LARGEST[torch.float8_e4m3fn]
    share = torch.stack(weight.aminmax()).abs().amax().float().clamp_min(1e-30) / largest
    scale = torch.exp2(torch.ceil(torch.log2(share)))  # so a value times the scale is exact in bf16
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    for part in slices(len(weight), _ROWS):
        values[part] = (weight[part].float() / scale).clamp_(-largest, largest).to(values.dtype)
    return values, scale


def squared_error(weight: Tensor, values: Tensor, scale: Tensor) -> float:
    """Return the sum of the squared differences between `weight` [out, in] and its decoded values, `values` * `scale`.
    `scale` is a single number or [out, 1]."""
    scales, parts = scale.expand(len(weight), 1), slices(len(weight), _ROWS)
    return sum((values[part].float() * scales[part]).sub_(weight[part]).square_().sum().item() for part in parts)
