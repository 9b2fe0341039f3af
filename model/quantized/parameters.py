"""Weights in fewer bits as parameters: their bytes, and beside them what decodes them."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from ...errors import require
from ...options import T
from ..ops.matrix_8bit import EightBit
from ..ops.pointwise import encode_8bit
from . import scaled
from .codec import Scales, decode
from .decoding import decode_blocks, fastest, recode


class DecodedParameter(torch.nn.Parameter):
    """A weight in fewer bits as a model outside ComfyUI has it. It needs nothing but torch: importing comfy_kitchen and
    bitsandbytes takes six seconds, half of it for torch's compiler. In ComfyUI a QuantizedTensor takes its place, which
    the host can move and patch."""

    _kept: dict[torch.dtype, Any] | None = None
    _place: "Place | None" = None

    def keep(self, place: "Place | None" = None) -> None:
        """From now on what decoding and recoding make stays beside the weight, or in its `place`, and is given
        again."""
        self._kept, self._place = {}, place

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in `dtype`."""
        raise NotImplementedError

    def _kept_or_made(self, dtype: torch.dtype, make: Callable[[], T]) -> T:
        kept = {} if self._kept is None else self._kept
        if dtype not in kept:
            made = make()
            kept[dtype] = made if self._place is None else self._place.put(made)
        return kept[dtype]


class Place:
    """Where what a weight is made into lies, one behind the other, among several of the same shape: one product takes
    them all."""

    def __init__(self, number: int, count: int, together: dict[Any, Tensor]) -> None:
        self._number, self._count, self._together = number, count, together

    def put(self, made: T) -> T:
        """The same tensor, or the same numbers in 8 bits, there."""
        if isinstance(made, EightBit):
            values, scales = self._own("values", made.values), self._own("scales", made.scales.view(-1, 1))
            return cast(T, EightBit(values, scales))
        return cast(T, self._own("decoded", cast(Tensor, made)))

    def _own(self, kind: str, made: Tensor) -> Tensor:
        rows, width = made.shape
        whole = self._together.setdefault((kind, made.dtype), made.new_empty(0))
        if not len(whole):
            whole = self._together[kind, made.dtype] = made.new_empty(self._count * rows, width)
        own = whole[self._number * rows : (self._number + 1) * rows]
        own.view(torch.uint8).copy_(made.view(torch.uint8))  # torch copies no floats in 8 bits everywhere
        return own


def keep_together(*weights: DecodedParameter) -> None:
    """`keep` weights of one shape so that what they are decoded or recoded into lies one behind the other."""
    together: dict[Any, Tensor] = {}
    for number, weight in enumerate(weights):
        weight.keep(Place(number, len(weights), together))


class WideParameter(DecodedParameter):
    """A weight of 16 bits or more, which arithmetic in 8 bits recodes."""

    @classmethod
    def of(cls, weight: Tensor) -> "WideParameter":
        """Over the same memory."""
        return torch.Tensor._make_subclass(cls, weight.detach(), False)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`."""
        return self.data.to(dtype)

    def recode(self, dtype: torch.dtype) -> EightBit:
        """The weight in 8 bits, int8 or float8_e4m3fn, with a scale for each row."""
        return self._kept_or_made(dtype, lambda: encode_8bit(self.data, dtype=dtype))


class FourBitParameter(DecodedParameter):
    """A 4-bit weight: the packed bytes, and beside them what decodes them."""

    scales: Scales
    weight_shape: tuple[int, ...]

    @classmethod
    def of(cls, packed: Tensor, scales: Scales, shape: tuple[int, ...]) -> "FourBitParameter":
        """Over these tensors as they are: views of a mapped file, slices of a GPU buffer."""
        parameter = torch.Tensor._make_subclass(cls, packed, False)
        parameter.scales, parameter.weight_shape = scales, tuple(shape)
        return parameter

    def decode(self, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, bit-equal to what bitsandbytes makes of it."""
        run = fastest("decode_4bit", decode, self.device.type)
        return self._kept_or_made(dtype, lambda: run(self.data, self.scales, self.weight_shape, dtype))

    def recode(self, dtype: torch.dtype) -> EightBit:
        """The weight in 8 bits, int8 or float8_e4m3fn, with a scale for each row."""
        return self._kept_or_made(dtype, lambda: recode(self.data, self.scales, self.weight_shape, dtype))


class ScaledParameter(DecodedParameter):
    """An 8-bit weight: its values, and beside them its scale."""

    scale: Tensor | None

    @classmethod
    def of(cls, values: Tensor, scale: Tensor | None) -> "ScaledParameter":
        """Over these tensors as they are: views of a mapped file, slices of a GPU buffer."""
        parameter = torch.Tensor._make_subclass(cls, values, False)
        parameter.scale = scale
        return parameter

    def decode(self, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, as ComfyUI decodes it: float8 times the scale in `dtype`, int8 times it in float32."""
        return self._kept_or_made(dtype, lambda: scaled.decode(self.data, self.scale, dtype))

    def recode(self, dtype: torch.dtype) -> EightBit:
        """The weight in 8 bits, int8 or float8_e4m3fn, with a scale for each row: its own values if they are that."""
        if self.dtype == dtype:
            return scaled.recode(self.data, self.scale, dtype)
        return self._kept_or_made(dtype, lambda: scaled.recode(self.data, self.scale, dtype))


class BlockParameter(DecodedParameter):
    """A weight in blocks of GGML: the bytes of a GGUF file, their format and the weight's shape."""

    kind: str
    weight_shape: tuple[int, ...]

    @classmethod
    def of(cls, packed: Tensor, kind: str, shape: tuple[int, ...]) -> "BlockParameter":
        """Return a parameter over this tensor, without a copy."""
        parameter = torch.Tensor._make_subclass(cls, packed, False)
        parameter.kind, parameter.weight_shape = kind, tuple(shape)
        return parameter

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in `dtype`: the library gguf's float32 values, rounded once."""
        return self._kept_or_made(dtype, lambda: self._decoded(dtype))

    def _decoded(self, dtype: torch.dtype) -> Tensor:
        return decode_blocks(self.data, self.kind, self.weight_shape, dtype)

    def recode(self, dtype: torch.dtype) -> EightBit:
        """Return the weight in 8 bits, int8 or float8_e4m3fn, with a scale for each row."""
        return self._kept_or_made(dtype, lambda: encode_8bit(self._decoded(torch.float32), dtype=dtype))


class LayoutParameter(DecodedParameter):
    """A weight of one of comfy_kitchen's layouts: its values, and the other fields of the layout's Params."""

    layout_name: str
    weight_shape: tuple[int, ...]
    fields: dict[str, Any]

    @classmethod
    def of(cls, values: Tensor, layout: str, shape: tuple[int, ...], fields: dict[str, Any]) -> "LayoutParameter":
        """Return a parameter over these tensors, without a copy."""
        parameter = torch.Tensor._make_subclass(cls, values, False)
        parameter.layout_name, parameter.weight_shape, parameter.fields = layout, shape, fields
        return parameter

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in `dtype`, as comfy_kitchen decodes it."""
        return self._kept_or_made(dtype, lambda: self._decoded(dtype))

    def _decoded(self, dtype: torch.dtype) -> Tensor:
        tensor = load_layouts().core_tensor(self.layout_name, self.data, dtype, self.weight_shape, **self.fields)
        return tensor.dequantize()

    def recode(self, dtype: torch.dtype) -> EightBit:
        """Return the weight in 8 bits, int8 or float8_e4m3fn, with a scale for each row."""
        return self._kept_or_made(dtype, lambda: encode_8bit(self._decoded(torch.float32), dtype=dtype))


def load_layouts() -> ModuleType:
    """Return the module of layouts. Nothing imports it before use: comfy_kitchen.tensor takes a second.

    Raises DependencyError where comfy-kitchen cannot be imported."""
    require("comfy_kitchen.tensor", "comfy-kitchen packaging")
    from . import layouts

    return layouts


def load_block_layout() -> ModuleType:
    """Return the module of the layout of GGML's blocks; see `load_layouts`."""
    load_layouts()
    from . import block_layout

    return block_layout


def frozen_parameter(tensor: Any) -> torch.nn.Parameter:
    """`tensor` as a Parameter without gradient, still the same bytes.

    A quantized tensor is marked as a parameter in place: `Parameter(tensor)` would detach it, and comfy_kitchen's
    detach copies the scales, out of the mapped file into memory.
    """
    if not hasattr(tensor, "_qdata"):
        return torch.nn.Parameter(tensor, requires_grad=False)
    tensor._is_param = True
    return tensor
