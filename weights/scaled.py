"""Weights with 8-bit or block-scaled values in ComfyUI's formats: their decoded rows and parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model.quantized import scaled
from ..model.quantized.parameters import LayoutParameter, ScaledParameter, frozen_parameter, load_layouts
from .tensors import TensorEntry

E4M3, INT8, NVFP4, MXFP8 = "float8_e4m3fn", "int8_tensorwise", "nvfp4", "mxfp8"
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_LAYOUTS = dict.fromkeys(FLOAT8, "TensorCoreFP8Layout") | {torch.int8: "TensorWiseINT8Layout"}
TYPES = {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8_e5m2", torch.int8: "int8"}
TILE = 128
"""The number of rows in a tile. Files in nvfp4 and mxfp8 store block scales tile by tile."""


@dataclass(frozen=True)
class ScaledWeight:
    """A weight that a file stores as float8 or int8 values. `scale` is None for float8 values without a scale."""

    values: TensorEntry
    scale: TensorEntry | None

    @property
    def quant_type(self) -> str:
        return TYPES[self.values.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def entries(self) -> list[TensorEntry]:
        return [self.values] if self.scale is None else [self.values, self.scale]

    def rows(self, rows: Tensor) -> Tensor:
        """Read and decode the rows with indices `rows` (int64 [n]) from the mapped file, as float32 [n, width]."""
        values, scale = self.values.view(), None if self.scale is None else self.scale.view()
        picked = values.view(torch.uint8)[rows].view(values.dtype)  # not every torch indexes 8-bit floats
        return scaled.decode(picked, _rows_of(scale, rows), torch.float32)

    def parameter(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> torch.nn.Parameter:
        """Return a frozen QuantizedTensor that decodes to `dtype`. If `dtype` is None, return a ScaledParameter, which
        decodes to any dtype. `tensors` are the file's loaded tensors by name."""
        values = tensors[self.values.name]
        scale = None if self.scale is None else tensors[self.scale.name]
        if dtype is None:
            return ScaledParameter.of(values, scale)
        scale = torch.ones((), device=values.device) if scale is None else scale
        return frozen_parameter(load_layouts().kitchen_tensor(_LAYOUTS[values.dtype], values, dtype, scale=scale))


@dataclass(frozen=True)
class LayoutWeight:
    """A weight in a format that comfy_kitchen decodes: nvfp4, mxfp8, or int8 with rotated rows (convrot).

    group: the number of values rotated together; 0 for nvfp4 and mxfp8.
    """

    format: str
    values: TensorEntry
    scale: TensorEntry
    scale_2: TensorEntry | None = None
    group: int = 0

    @property
    def quant_type(self) -> str:
        return "int8_convrot" if self.group else self.format

    @property
    def shape(self) -> tuple[int, ...]:
        rows, width = self.values.shape
        return rows, width * (2 if self.format == NVFP4 else 1)

    @property
    def entries(self) -> list[TensorEntry]:
        return [entry for entry in (self.values, self.scale, self.scale_2) if entry is not None]

    def rows(self, rows: Tensor) -> Tensor:
        """Read and decode the rows with indices `rows` (int64 [n]) from the mapped file, as float32 [n, width]."""
        tensors = {entry.name: entry.view() for entry in self.entries}
        if self.group:
            scale = _rows_of(self.scale.view(), rows)
            assert scale is not None  # the format has one
            return self._decoded(self.values.view()[rows], scale, tensors)
        wanted, at = torch.unique(rows // TILE, return_inverse=True)
        scales = self.scale.view().view(-1, TILE * round_up(self.blocks, 4))
        tiles = [
            self._decoded(self.values.view()[tile * TILE : (tile + 1) * TILE], scales[tile], tensors)[
                rows[at == number] - tile * TILE
            ]
            for number, tile in enumerate(wanted.tolist())
        ]
        order = torch.cat([(at == number).nonzero().view(-1) for number in range(len(wanted))])
        return torch.cat(tiles)[order.argsort()]

    @property
    def blocks(self) -> int:
        """The number of blocks per row of an nvfp4 or mxfp8 weight. Each block has a scale."""
        return self.shape[1] // (16 if self.format == NVFP4 else 32)

    def _decoded(self, values: Tensor, scale: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        parts = dict(tensors) | {self.values.name: values, self.scale.name: scale}
        parameter = self.parameter(parts, None)
        assert isinstance(parameter, LayoutParameter)
        return parameter.decode(torch.float32)

    def parameter(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> torch.nn.Parameter:
        """Return a frozen QuantizedTensor that decodes to `dtype`. If `dtype` is None, return a LayoutParameter, which
        decodes to any dtype. `tensors` are the file's loaded tensors by name."""
        layout, parts = self._layout(tensors)
        values = tensors[self.values.name]
        if dtype is None:
            return LayoutParameter.of(values, layout, (len(values), self.shape[1]), parts)
        return frozen_parameter(load_layouts().kitchen_tensor(layout, values, dtype, self.shape, **parts))

    def _layout(self, tensors: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
        scale = tensors[self.scale.name]
        if self.format == MXFP8:
            return "TensorCoreMXFP8Layout", {"scale": scale.view(torch.float8_e8m0fnu)}
        if self.format == NVFP4 and self.scale_2 is not None:
            blocks = scale.view(torch.float8_e4m3fn)
            return "TensorCoreNVFP4Layout", {"scale": tensors[self.scale_2.name], "block_scale": blocks}
        return "TensorWiseINT8Layout", {"scale": scale, "convrot": True, "convrot_groupsize": self.group}


def _rows_of(scale: Tensor | None, rows: Tensor) -> Tensor | None:
    return scale if scale is None or scale.numel() == 1 else scale[rows]


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
