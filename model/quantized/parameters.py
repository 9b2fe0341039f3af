"""Quantized weights as torch Parameters that are decoded on demand."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from ...errors import require
from ...options import T
from ..ops.implementation import on_its_gpu, our_kernel_or
from ..ops.matrix_8bit import EightBit
from ..ops.pointwise import encode_8bit
from ..ops.rotation import GROUP, Rotated, encode_rotated
from . import scaled
from .codec import Scales, decode
from .decoding import decode_blocks, recode


class DecodedParameter(torch.nn.Parameter):
    """A weight in its file's format, such as 4-bit, that is decoded or converted to 8 bits when needed. In ComfyUI,
    QuantizedTensors replace this class."""

    _can_rotate = True
    """Whether `recode` can return the weight as rotated int8 rows (see `rotation.Rotated`)."""
    _kept: dict[tuple[torch.dtype, bool], Any] | None = None
    _place: "SharedPart | None" = None

    def keep(self, place: "SharedPart | None" = None) -> None:
        """Make `decode` and `recode` cache their results from now on. With `place`, cached results are copied there."""
        self._kept, self._place = {}, place

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the weight as a plain tensor [out, in] in `dtype`. The result is cached if `keep` was called."""
        return self._kept_or_made(dtype, False, self._decode)

    def recode(self, dtype: torch.dtype, may_rotate: bool = False) -> EightBit:
        """Return the weight in int8 or float8_e4m3fn, with a scale for each row. If `may_rotate` and the format allows
        rotation, return rotated int8 rows (Rotated, a subclass of EightBit), whatever `dtype` is."""
        return self._kept_or_made(dtype, may_rotate, self._rotate if may_rotate else self._recode)

    def _decode(self, dtype: torch.dtype) -> Tensor:
        raise NotImplementedError

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return encode_8bit(self._decode(torch.float32), dtype=dtype)

    def _rotate(self, dtype: torch.dtype) -> EightBit:
        return encode_rotated(self._decode(torch.bfloat16)) if self._can_rotate else self._recode(dtype)

    def _kept_or_made(self, dtype: torch.dtype, rotated: bool, make: Callable[[torch.dtype], T]) -> T:
        kept, key = {} if self._kept is None else self._kept, (dtype, rotated)
        if key not in kept:
            made = make(dtype)
            kept[key] = made if self._place is None else self._place.put(made)
        return kept[key]


class SharedPart:
    """The rows of a larger tensor that are reserved for one decoded weight. Weights in adjacent rows form one matrix,
    so that a single matrix product can use all."""

    def __init__(self, number: int, count: int, together: dict[Any, Tensor]) -> None:
        self._number, self._count, self._together = number, count, together

    def put(self, made: T) -> T:
        """Copy a decoded or 8-bit weight to its reserved rows of the shared tensor, and return a view of the rows.
        Raise ValueError if the shape differs from the other weights'."""
        if isinstance(made, EightBit):
            kind = type(made)
            values, scales = made.values, made.scales.view(-1, 1)
            return cast(T, kind(self._own(f"{kind} values", values), self._own(f"{kind} scales", scales)))
        return cast(T, self._own("decoded", cast(Tensor, made)))

    def _own(self, kind: str, made: Tensor) -> Tensor:
        rows, width = made.shape
        whole = self._together.get((kind, made.dtype))
        if whole is None:
            whole = self._together[kind, made.dtype] = made.new_empty(self._count * rows, width)
        if whole.shape != (self._count * rows, width):
            raise ValueError(f"a weight [{rows}, {width}] cannot share memory with weights of another shape")
        own = whole[self._number * rows : (self._number + 1) * rows]
        own.view(torch.uint8).copy_(made.view(torch.uint8))  # torch cannot copy 8-bit floats on every device
        return own


def keep_together(*weights: DecodedParameter) -> None:
    """Make weights of equal shape cache their results in adjacent memory, so that one matrix product covers all."""
    together: dict[Any, Tensor] = {}
    for number, weight in enumerate(weights):
        weight.keep(SharedPart(number, len(weights), together))


class WideParameter(DecodedParameter):
    """An unquantized weight of 16 or more bits, which `recode` quantizes to 8 bits. `decode` results are not cached."""

    @classmethod
    def of(cls, weight: Tensor) -> "WideParameter":
        """Return a parameter that shares the memory of `weight`, an unquantized tensor of 16 or more bits."""
        return torch.Tensor._make_subclass(cls, weight.detach(), False)

    def decode(self, dtype: torch.dtype) -> Tensor:
        return self._decode(dtype)

    def _decode(self, dtype: torch.dtype) -> Tensor:
        return self.data.to(dtype)

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return encode_8bit(self.data, dtype=dtype)


class FourBitParameter(DecodedParameter):
    """A 4-bit weight of packed bytes and scales."""

    _can_rotate = False
    scales: Scales
    weight_shape: tuple[int, ...]

    @classmethod
    def of(cls, packed: Tensor, scales: Scales, shape: tuple[int, ...]) -> "FourBitParameter":
        """Return a parameter of `shape` over the bytes `packed` (uint8) and their scales, without a copy."""
        parameter = torch.Tensor._make_subclass(cls, packed, False)
        parameter.scales, parameter.weight_shape = scales, tuple(shape)
        return parameter

    def _decode(self, dtype: torch.dtype) -> Tensor:
        run = our_kernel_or("decode_4bit", decode, self.device.type)
        return run(self.data, self.scales, self.weight_shape, dtype)

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return recode(self.data, self.scales, self.weight_shape, dtype)


class ScaledParameter(DecodedParameter):
    """A float8 or int8 weight with a single scale, a scale for each row, or no scale, which means 1."""

    scale: Tensor | None

    @classmethod
    def of(cls, values: Tensor, scale: Tensor | None) -> "ScaledParameter":
        """Return a parameter over 8-bit values [out, in]. `scale` is a single number, [out, 1], or None."""
        parameter = torch.Tensor._make_subclass(cls, values, False)
        parameter.scale = scale
        return parameter

    def recode(self, dtype: torch.dtype, may_rotate: bool = False) -> EightBit:
        return self._recode(dtype) if self.dtype == dtype and not may_rotate else super().recode(dtype, may_rotate)

    def _decode(self, dtype: torch.dtype) -> Tensor:
        return scaled.decode(self.data, self.scale, dtype)

    def _recode(self, dtype: torch.dtype) -> EightBit:
        return scaled.recode(self.data, self.scale, dtype)


class BlockParameter(DecodedParameter):
    """A weight in GGML's blocks."""

    _can_rotate = False
    kind: str
    weight_shape: tuple[int, ...]

    @classmethod
    def of(cls, packed: Tensor, kind: str, shape: tuple[int, ...]) -> "BlockParameter":
        """Return a parameter of `shape` over the bytes `packed` in the format `kind`, without a copy."""
        parameter = torch.Tensor._make_subclass(cls, packed, False)
        parameter.kind, parameter.weight_shape = kind, tuple(shape)
        return parameter

    def _decode(self, dtype: torch.dtype) -> Tensor:
        return decode_blocks(self.data, self.kind, self.weight_shape, dtype)


class LayoutParameter(DecodedParameter):
    """A weight in a comfy_kitchen layout. `fields` are the layout's parameters, without dtype and shape."""

    layout_name: str
    weight_shape: tuple[int, ...]
    fields: dict[str, Any]

    @classmethod
    def of(cls, values: Tensor, layout: str, shape: tuple[int, ...], fields: dict[str, Any]) -> "LayoutParameter":
        """Return a parameter that decodes to `shape`, over `values` stored in the comfy_kitchen layout named `layout`.
        `fields` are the other fields of the layout's Params, such as `scale`."""
        parameter = torch.Tensor._make_subclass(cls, values, False)
        parameter.layout_name, parameter.weight_shape, parameter.fields = layout, shape, fields
        return parameter

    @classmethod
    def like(cls, weight: Any) -> "LayoutParameter":
        """Return a parameter that shares the memory of `weight`, a QuantizedTensor in a comfy_kitchen layout."""
        fields = {each.name: getattr(weight._params, each.name) for each in dataclasses.fields(weight._params)}
        del fields["orig_dtype"]
        return cls.of(weight._qdata, weight._layout_cls, fields.pop("orig_shape"), fields)

    def copied(self) -> "LayoutParameter":
        """Return a parameter with its own memory and the same values."""
        fields = {name: value.clone() if isinstance(value, Tensor) else value for name, value in self.fields.items()}
        return type(self).of(self.data.clone(), self.layout_name, self.weight_shape, fields)

    @on_its_gpu
    def _decode(self, dtype: torch.dtype) -> Tensor:
        tensor = load_layouts().kitchen_tensor(self.layout_name, self.data, dtype, self.weight_shape, **self.fields)
        return tensor.dequantize()

    def _rotate(self, dtype: torch.dtype) -> EightBit:
        if self.fields.get("convrot") and self.fields["convrot_groupsize"] == GROUP:  # rotated in its file
            scales = self.fields["scale"].float().reshape(-1, 1)
            return Rotated(self.data, scales.expand(len(self.data), 1).contiguous())
        return super()._rotate(dtype)


def load_layouts() -> ModuleType:
    """Import and return the module `layouts`. Raise DependencyError if comfy-kitchen cannot be imported."""
    require("comfy_kitchen.tensor", "comfy-kitchen packaging")
    from . import layouts

    return layouts


def load_block_layout() -> ModuleType:
    """Import and return the module `block_layout`. Raise DependencyError if comfy-kitchen cannot be imported."""
    load_layouts()
    from . import block_layout

    return block_layout


def frozen_parameter(tensor: Any) -> torch.nn.Parameter:
    """Return a Parameter without gradient that shares the tensor's memory. A QuantizedTensor is itself marked as a
    Parameter, in place, and returned."""
    if not hasattr(tensor, "_qdata"):
        return torch.nn.Parameter(tensor, requires_grad=False)
    tensor._is_param = True  # Parameter(tensor) would call comfy_kitchen's detach, which copies mapped scales to memory
    return tensor
