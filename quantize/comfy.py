"""Writing of weights in ComfyUI's quantized formats."""

import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..model.ops.implementation import slices
from ..model.ops.pointwise import encode_8bit
from ..model.quantized import scaled
from ..model.quantized.parameters import LayoutParameter, load_layouts
from ..weights.comfy import METADATA
from ..weights.scaled import E4M3, INT8, NVFP4

FORMATS = {"fp8": E4M3, "int8": INT8, "nvfp4": NVFP4}
"""ComfyUI's names of the formats that can be written, by this project's names."""
_ROWS = 1024
"""The number of rows quantized to nvfp4 at a time: a multiple of 128, the rows in a tile of block scales."""
_LARGEST = 448 * 6
"""The largest nvfp4 value without the per-tensor scale: the largest block scale times the largest 4-bit value."""


class Encoded(NamedTuple):
    """The result of quantizing a matrix.

    scales: the tensors of scales, by the suffix appended to the matrix's name.
    squared_error: the sum of the squared differences to the original values.
    """

    values: Tensor
    scales: dict[str, Tensor]
    squared_error: float


def encode(weight: Tensor, quant_type: str) -> Encoded:
    """Return the matrix in the format `quant_type`, a key of FORMATS."""
    if quant_type == "nvfp4":
        return _nvfp4(weight)
    values, scale = scaled.encode(weight) if quant_type == "fp8" else encode_8bit(weight.float(), dtype=torch.int8)
    return Encoded(values, {"_scale": scale}, scaled.squared_error(weight, values, scale))


def _nvfp4(weight: Tensor) -> Encoded:
    layout = load_layouts().get_layout_class("TensorCoreNVFP4Layout")
    scale = (torch.stack(weight.aminmax()).abs().amax().float() / _LARGEST).clamp_min(1e-30)
    values, blocks, error = [], [], 0.0
    for rows in slices(len(weight), _ROWS):
        part = weight[rows].float()
        packed, params = layout.quantize(part, scale=scale)
        fields = {"scale": scale, "block_scale": params.block_scale}
        decoded = LayoutParameter.of(packed, "TensorCoreNVFP4Layout", tuple(part.shape), fields).decode(torch.float32)
        error += decoded.sub_(part).square_().sum().item()
        values.append(packed)
        blocks.append(params.block_scale)
    scales = torch.cat([each.view(torch.uint8) for each in blocks])
    return Encoded(torch.cat(values), {"_scale": scales, "_scale_2": scale}, error)


def stored_tensors(name: str, shape: tuple[int, ...], quant_type: str) -> Iterator[tuple[str, torch.dtype, list[int]]]:
    """Yield the key, dtype and shape of each tensor that stores the matrix `name` in `quant_type`, a key of FORMATS."""
    rows, width = shape
    if quant_type == "nvfp4":
        yield name, torch.uint8, [rows, width // 2]
        yield f"{name}_scale", torch.float8_e4m3fn, [-(-rows // 128) * 128, -(-width // 64) * 4]
        yield f"{name}_scale_2", torch.float32, []
        return
    dtype = torch.int8 if quant_type == "int8" else torch.float8_e4m3fn
    yield name, dtype, list(shape)
    yield f"{name}_scale", torch.float32, [rows, 1] if quant_type == "int8" else []


def metadata(quantized: Collection[str], quant_type: str) -> dict[str, str]:
    """Return a file's metadata with each quantized weight's format, or {} if FORMATS lacks `quant_type`."""
    if quant_type not in FORMATS or not quantized:
        return {}
    layers = {name.removesuffix(".weight"): {"format": FORMATS[quant_type]} for name in sorted(quantized)}
    return {METADATA: json.dumps({"format_version": "1.0", "layers": layers})}
