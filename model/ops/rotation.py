"""Rotation of both operands of an int8 product by an orthogonal Hadamard matrix (ConvRot), which spreads outliers over
columns."""

from functools import lru_cache
from importlib import import_module

import torch
from torch import Tensor

from .implementation import on_its_gpu
from .matrix_8bit import EightBit

GROUP = 256
"""The number of columns that are rotated together, a size for which comfy-kitchen has fast kernels."""


class Rotated(EightBit):
    """An int8 weight [out, in] that was rotated before quantization (see `rotate`). The input of its layer must be
    rotated too."""

    __slots__ = ()


@on_its_gpu
def encode_rotated(weight: Tensor) -> Rotated:
    """Return a weight [out, in] multiplied by a Hadamard matrix (see `rotate`) and quantized to int8, with a scale for
    each row. `in` must be a multiple of GROUP."""
    registry, name = import_module("comfy_kitchen").registry, "quantize_int8_convrot_weight"
    encode = registry.get_implementation(name, kwargs={"weight": weight, "group_size": GROUP})
    values, scales = encode(weight, GROUP)
    return Rotated(values, scales.float().view(-1, 1))


def rotate(x: Tensor) -> Tensor:
    """Return x [..., in], each group of GROUP columns times an orthonormal Hadamard matrix, in the dtype of x."""
    return (x.unflatten(-1, (-1, GROUP)) @ _hadamard(x.device, x.dtype)).flatten(-2)


@lru_cache
def _hadamard(device: torch.device, dtype: torch.dtype) -> Tensor:
    one = torch.ones(4, 4) - 2 * torch.eye(4).flip(0)
    whole = one
    while len(whole) < GROUP:
        whole = torch.kron(whole, one)
    return (whole / GROUP**0.5).to(device, dtype)
