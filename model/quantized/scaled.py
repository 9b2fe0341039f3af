"""8-bit weights as in ComfyUI's files, with a single scale or one scale for each row: encoding and decoding."""

import torch
from torch import Tensor

from ..ops.implementation import slices
from ..ops.matrix_8bit import LARGEST, EightBit
from ..ops.pointwise import encode_8bit

_ROWS = 256
"""At most this many rows are converted to float32 at a time."""


def decode(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return an 8-bit weight [out, in] decoded to `dtype`. `scale` is a single number, [out, 1], or None. float8 values
    are multiplied by the scale in `dtype`, int8 values in float32."""
    if scale is None:
        return values.to(dtype)
    if values.dtype == torch.int8:
        return values.float().mul_(scale).to(dtype)
    return values.to(dtype).mul_(scale.to(dtype))


def recode(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> EightBit:
    """Return an 8-bit weight [out, in] in the 8-bit `dtype`, with a scale for each row. `scale` is a single number,
    [out, 1], or None. Values that already have this dtype are returned unchanged."""
    scales = torch.ones((), device=values.device) if scale is None else scale.float()
    if values.dtype == dtype:
        return EightBit(values, scales.expand(len(values), 1).contiguous())
    return encode_8bit(values.float() * scales, dtype=dtype)


def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight in float8_e4m3fn, and its single scale (float32, []). The scale is a power of two. A value times
    the scale is then exact in bf16, so that decoding in bf16 and in fp32 gives the same weight."""
    largest = LARGEST[torch.float8_e4m3fn]
    share = torch.stack(weight.aminmax()).abs().amax().float().clamp_min(1e-30) / largest
    scale = torch.exp2(torch.ceil(torch.log2(share)))
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    for part in slices(len(weight), _ROWS):
        values[part] = (weight[part].float() / scale).clamp_(-largest, largest).to(values.dtype)
    return values, scale


def squared_error(weight: Tensor, values: Tensor, scale: Tensor) -> float:
    """Return the sum of the squared differences between a weight [out, in] and its encoded values, computed in float32,
    part by part. `scale` is a single number or [out, 1]."""
    scales, parts = scale.expand(len(weight), 1), slices(len(weight), _ROWS)
    return sum((values[part].float() * scales[part]).sub_(weight[part]).square_().sum().item() for part in parts)
