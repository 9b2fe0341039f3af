"""bitsandbytes' 4-bit weights as comfy_kitchen QuantizedTensor layouts. Import it through `nf4.load_layouts()`.

Two layouts, because torch's compile cache knows a quantized tensor by its layout's name and fields only: NATIVE decodes
with bitsandbytes' functional calls, PLAIN in torch. Never through Linear4bit or Params4bit: the first repacks weights
in place on some CPUs, the second loses its state on clone and detach.
"""

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from comfy_kitchen.tensor import (
    BaseLayoutParams,
    QuantizedLayout,
    QuantizedTensor,
    register_layout_class,
    register_layout_op,
)
from torch import Tensor

from . import nf4, quantize
from .dependencies import bitsandbytes_functional

NATIVE = "LingBotNF4"
PLAIN = "LingBotNF4Plain"

_OPTIONAL_TENSORS = ("code", "nested_absmax", "nested_code", "offset")
_BITSANDBYTES_DEVICES = ("cpu", "cuda")
_BITSANDBYTES_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class FourBitParams(BaseLayoutParams):
    """`scale` is absmax. `orig_shape` is the logical shape, reversed when `transposed`; the bytes never move."""

    code: Tensor
    nested_absmax: Tensor | None
    nested_code: Tensor | None
    offset: Tensor | None
    blocksize: int = 64
    nested_blocksize: int = 256
    quant_type: str = "nf4"
    state_dtype: torch.dtype = torch.bfloat16
    transposed: bool = False

    def _tensor_fields(self) -> list[str]:
        return ["scale", *(name for name in _OPTIONAL_TENSORS if getattr(self, name) is not None)]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.orig_shape[::-1] if self.transposed else self.orig_shape

    @property
    def scales(self) -> nf4.Scales:
        return nf4.Scales(self.scale, self.code, self.nested_absmax, self.nested_code, self.offset, self.blocksize,
                          self.nested_blocksize)  # fmt: skip


class PlainLayout(QuantizedLayout):
    """Decodes in plain torch, on any device."""

    Params = FourBitParams

    @classmethod
    def decode(cls, packed: Tensor, params: FourBitParams, dtype: torch.dtype) -> Tensor:
        return nf4.decode(packed, params.scales, params.stored_shape, dtype)

    @classmethod
    def dequantize(cls, qdata: Tensor, params: FourBitParams) -> Tensor:
        return cls.decode(qdata, params, params.orig_dtype)

    @classmethod
    def quantize(cls, tensor: Tensor, blocksize=64, nested=True, quant_type="nf4", **_) -> tuple[Tensor, FourBitParams]:
        packed, scales = quantize.encode(tensor, blocksize, nested, quant_type)
        return packed, FourBitParams(
            scale=scales.absmax, orig_dtype=tensor.dtype, orig_shape=tuple(tensor.shape), code=scales.code,
            nested_absmax=scales.nested_absmax, nested_code=scales.nested_code, offset=scales.offset,
            blocksize=scales.blocksize, nested_blocksize=scales.nested_blocksize, quant_type=quant_type,
            state_dtype=tensor.dtype,
        )  # fmt: skip

    @classmethod
    def get_plain_tensors(cls, qtensor: QuantizedTensor) -> tuple[Tensor, ...]:
        return qtensor._qdata, qtensor._params.scale

    @classmethod
    def requantize_kwargs(cls, qtensor: QuantizedTensor) -> dict:
        params = qtensor._params
        nested = params.nested_absmax is not None
        return {"blocksize": params.blocksize, "nested": nested, "quant_type": params.quant_type}

    @classmethod
    def state_dict_tensors(cls, qdata: Tensor, params: FourBitParams) -> dict[str, Tensor]:
        """The keys that bitsandbytes writes beside a weight; "" is the packed weight itself."""
        return {"": qdata, **quantize.components(params.scales, params.stored_shape, params.quant_type,
                                                 params.state_dtype)}  # fmt: skip


class NativeLayout(PlainLayout):
    """Decodes with bitsandbytes where it has a kernel for the device and dtype, else as PlainLayout does."""

    @classmethod
    def decode(cls, packed: Tensor, params: FourBitParams, dtype: torch.dtype) -> Tensor:
        if packed.device.type not in _BITSANDBYTES_DEVICES or dtype not in _BITSANDBYTES_DTYPES:
            return super().decode(packed, params, dtype)
        return bitsandbytes_functional().dequantize_4bit(packed.view(-1, 1), _quant_state(params, dtype))


def _quant_state(params: FourBitParams, dtype: torch.dtype):
    functional = bitsandbytes_functional()
    outer = None
    if params.nested_absmax is not None:
        outer = functional.QuantState(absmax=params.nested_absmax, code=params.nested_code,
                                      blocksize=params.nested_blocksize, dtype=torch.float32)  # fmt: skip
    return functional.QuantState(
        absmax=params.scale, shape=torch.Size(params.stored_shape), code=params.code, blocksize=params.blocksize,
        quant_type=params.quant_type, dtype=dtype, offset=params.offset, state2=outer,
    )  # fmt: skip


def _decoded(value, dtype: torch.dtype):
    if not isinstance(value, QuantizedTensor):
        return value
    weight = value.layout_cls.decode(value._qdata, value._params, dtype)
    return weight.t() if value._params.transposed else weight


def _partner_dtype(args) -> torch.dtype:
    """The dtype of the ordinary operand: weights are decoded into it, whatever dtype they declare."""
    plain = [arg.dtype for arg in args if not isinstance(arg, QuantizedTensor)]
    return plain[-1] if plain else args[-1].dtype


def _linear(qtensor, args, kwargs):
    x, weight, bias = (*args, None)[:3]
    dtype = _partner_dtype((weight, x))
    return F.linear(_decoded(x, dtype), _decoded(weight, dtype), bias)


def _mm(qtensor, args, kwargs):
    dtype = _partner_dtype(args[:2])
    return torch.mm(*(_decoded(arg, dtype) for arg in args[:2]))


def _addmm(qtensor, args, kwargs):
    # Outside inference_mode F.linear with a bias arrives here, as addmm(bias, x, weight.t()).
    dtype = _partner_dtype(args[1:3])
    return torch.addmm(*(_decoded(arg, dtype) for arg in args[:3]), **kwargs)


def _t(qtensor, args, kwargs):
    weight = args[0]
    params = weight._params
    turned = dataclasses.replace(params, orig_shape=params.orig_shape[::-1], transposed=not params.transposed)
    return QuantizedTensor(weight._qdata, weight._layout_cls, turned)


for _name, _layout in ((PLAIN, PlainLayout), (NATIVE, NativeLayout)):
    register_layout_class(_name, _layout)
for _op, _handler in ((torch.ops.aten.linear.default, _linear), (torch.ops.aten.mm.default, _mm),
                      (torch.ops.aten.addmm.default, _addmm), (torch.ops.aten.t.default, _t)):  # fmt: skip
    register_layout_op(_op, PlainLayout)(_handler)
