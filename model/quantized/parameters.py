"""Quantized weights as parameters: their bytes, and the tables that decode them."""

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
    """The base of quantized weights in a model outside ComfyUI.

    It needs torch only, because importing comfy_kitchen and bitsandbytes takes six seconds, half of it for torch's
    compiler. In ComfyUI, weights are QuantizedTensors instead, which the host can move and patch."""

    _kept: dict[torch.dtype, Any] | None = None
    _place: "SharedPart | None" = None

    def keep(self, place: "SharedPart | None" = None) -> None:
        """Cache decoded and recoded weights from now on, in `place` if given."""
        self._kept, self._place = {}, place

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in `dtype`, from the cache if `keep` was called."""
        return self._kept_or_made(dtype, self._decode)

    def recode(self, dtype: torch.dtype) -> EightBit:
        """Return the weight in 8 bits (int8 or float8_e4m3fn) with a scale for each row, from the cache if `keep` was
        called."""
        return self._kept_or_made(dtype, self._recode)

    def _decode(self, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return encode_8bit(self._decode(torch.float32), dtype=dtype)

    def _kept_or_made(self, dtype: torch.dtype, make: Callable[[torch.dtype], T]) -> T:
        kept = {} if self._kept is None else self._kept
        if dtype not in kept:
            made = make(dtype)
            kept[dtype] = made if self._place is None else self._place.put(made)
        return kept[dtype]


class SharedPart:
    """The part of one weight in a shared tensor, where decoded weights of the same shape are adjacent.

    One product can then use all of them."""

    def __init__(self, number: int, count: int, together: dict[Any, Tensor]) -> None:
        self._number, self._count, self._together = number, count, together

    def put(self, made: T) -> T:
        """Copy a tensor, or an 8-bit matrix, to this place; return the copy."""
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
        own.view(torch.uint8).copy_(made.view(torch.uint8))  # torch cannot copy 8-bit floats on every device
        return own


def keep_together(*weights: DecodedParameter) -> None:
    """Call `keep` on weights of one shape so that their decoded or recoded tensors are adjacent in memory."""
    together: dict[Any, Tensor] = {}
    for number, weight in enumerate(weights):
        weight.keep(SharedPart(number, len(weights), together))


class WideParameter(DecodedParameter):
    """A weight of 16 bits or more, which 8-bit arithmetic recodes. The result of `decode` is not cached."""

    @classmethod
    def of(cls, weight: Tensor) -> "WideParameter":
        """Return a parameter over the memory of `weight`."""
        return torch.Tensor._make_subclass(cls, weight.detach(), False)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in `dtype`."""
        return self.data.to(dtype)

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return encode_8bit(self.data, dtype=dtype)


class FourBitParameter(DecodedParameter):
    """A 4-bit weight: the packed bytes and their scales. It decodes to the same bits as bitsandbytes."""

    scales: Scales
    weight_shape: tuple[int, ...]

    @classmethod
    def of(cls, packed: Tensor, scales: Scales, shape: tuple[int, ...]) -> "FourBitParameter":
        """Return a parameter over these tensors without a copy: views of a mapped file, slices of a GPU buffer."""
        parameter = torch.Tensor._make_subclass(cls, packed, False)
        parameter.scales, parameter.weight_shape = scales, tuple(shape)
        return parameter

    def _decode(self, dtype: torch.dtype) -> Tensor:
        run = fastest("decode_4bit", decode, self.device.type)
        return run(self.data, self.scales, self.weight_shape, dtype)

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return recode(self.data, self.scales, self.weight_shape, dtype)


class ScaledParameter(DecodedParameter):
    """An 8-bit weight: its values and their scale.

    It decodes as in ComfyUI: float8 times the scale in the target dtype, int8 times the scale in float32."""

    scale: Tensor | None

    @classmethod
    def of(cls, values: Tensor, scale: Tensor | None) -> "ScaledParameter":
        """Return a parameter over these tensors without a copy: views of a mapped file, slices of a GPU buffer."""
        parameter = torch.Tensor._make_subclass(cls, values, False)
        parameter.scale = scale
        return parameter

    def recode(self, dtype: torch.dtype) -> EightBit:
        """Return the weight in 8 bits, as the base class; if the stored values have that dtype, they are used as they
        are."""
        return self._recode(dtype) if self.dtype == dtype else super().recode(dtype)

    def _decode(self, dtype: torch.dtype) -> Tensor:
        return scaled.decode(self.data, self.scale, dtype)

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return scaled.recode(self.data, self.scale, dtype)


class BlockParameter(DecodedParameter):
    """A weight in GGML's blocks: the bytes of a GGUF file, their format and the weight's shape.

    It decodes to the float32 values of the gguf library, rounded once."""

    kind: str
    weight_shape: tuple[int, ...]

    @classmethod
    def of(cls, packed: Tensor, kind: str, shape: tuple[int, ...]) -> "BlockParameter":
        """Return a parameter over this tensor, without a copy."""
        parameter = torch.Tensor._make_subclass(cls, packed, False)
        parameter.kind, parameter.weight_shape = kind, tuple(shape)
        return parameter

    def _decode(self, dtype: torch.dtype) -> Tensor:
        return decode_blocks(self.data, self.kind, self.weight_shape, dtype)


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

    def _decode(self, dtype: torch.dtype) -> Tensor:
        tensor = load_layouts().core_tensor(self.layout_name, self.data, dtype, self.weight_shape, **self.fields)
        return tensor.dequantize()


def load_layouts() -> ModuleType:
    """Return the module of layouts. It is only imported on use, because comfy_kitchen.tensor takes a second.

    Raises DependencyError if comfy-kitchen cannot be imported."""
    require("comfy_kitchen.tensor", "comfy-kitchen packaging")
    from . import layouts

    return layouts


def load_block_layout() -> ModuleType:
    """Return the module of the layout for GGML's blocks; see `load_layouts`."""
    load_layouts()
    from . import block_layout

    return block_layout


def frozen_parameter(tensor: Any) -> torch.nn.Parameter:
    """Return `tensor` as a Parameter without gradient over the same bytes.

    A quantized tensor is marked as a parameter in place: `Parameter(tensor)` would detach it, and comfy_kitchen's
    detach copies the scales out of the mapped file into memory."""
    if not hasattr(tensor, "_qdata"):
        return torch.nn.Parameter(tensor, requires_grad=False)
    tensor._is_param = True
    return tensor
