"""bitsandbytes' 4-bit formats as comfy_kitchen layouts, imported on demand because comfy-kitchen is optional."""

import dataclasses
import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from comfy_kitchen.tensor import (
    BaseLayoutParams,
    QuantizedLayout,
    QuantizedTensor,
    get_layout_class,
    register_layout_class,
    register_layout_op,
)
from torch import Tensor

from ...errors import DependencyError, require
from ..ops.matrix_8bit import EightBit
from . import codec
from .decoding import recode

log = logging.getLogger(__name__)

# Two layouts, because torch's compile cache distinguishes quantized tensors only by the name and fields of the layout.
NATIVE = "LingBotNF4"
PLAIN = "LingBotNF4Plain"

_OPTIONAL_TENSORS = ("code", "nested_absmax", "nested_code", "offset")
_BITSANDBYTES_DEVICES = ("cpu", "cuda")
_BITSANDBYTES_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@cache
def bitsandbytes_functional() -> Any:
    """Return the module bitsandbytes.functional, or None if it is missing or lacks a library for the installed CUDA."""
    # On CPUs with AVX512-BF16 it warns about an optional package that is unused here.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        functional = require("bitsandbytes.functional", "bitsandbytes")
        library = importlib.import_module("bitsandbytes.cextension").lib
    except DependencyError as error:
        log.warning("4-bit weights are decoded in plain torch: %s", error)
        return None
    # A library that failed to load is replaced by a stub with every attribute, hence `is True`.
    if torch.cuda.is_available() and library.compiled_with_cuda is not True:
        cuda = torch.version.cuda
        log.warning("4-bit weights are decoded in plain torch: bitsandbytes has no library for CUDA %s", cuda)
        return None
    return functional


@dataclass(frozen=True)
class FourBitParams(BaseLayoutParams):
    """The scales, format and shape of a 4-bit weight.

    scale: bitsandbytes' absmax.
    state_dtype: the weight's dtype before quantization.
    transposed: whether the tensor is the transpose of the stored weight.
    orig_shape: despite its name, the shape of this tensor; the stored weight's shape is the reverse if `transposed`.
    """

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
    def scales(self) -> codec.Scales:
        return codec.Scales(self.scale, *(getattr(self, name) for name in codec.Scales._fields[1:]))


class PlainLayout(QuantizedLayout):
    """The layout of 4-bit weights decoded in plain torch, and the base of others."""

    Params = FourBitParams

    @classmethod
    def decode(cls, packed: Tensor, params: FourBitParams, dtype: torch.dtype) -> Tensor:
        return codec.decode(packed, params.scales, params.stored_shape, dtype)

    @classmethod
    def recode(cls, packed: Tensor, params: FourBitParams, dtype: torch.dtype) -> EightBit:
        return recode(packed, params.scales, params.stored_shape, dtype)

    @classmethod
    def dequantize(cls, qdata: Tensor, params: FourBitParams) -> Tensor:
        return cls.decode(qdata, params, params.orig_dtype)

    @classmethod
    def quantize(
        cls, tensor: Tensor, blocksize: int = 64, nested: bool = True, quant_type: str = "nf4", **_: Any
    ) -> tuple[Tensor, FourBitParams]:
        packed, scales = codec.encode(tensor, blocksize, nested, quant_type)
        return packed, _params(scales, tuple(tensor.shape), quant_type, tensor.dtype, tensor.dtype)

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
        """Return the tensors that bitsandbytes saves for a weight, by suffix: "" for the packed weight."""
        return {
            "": qdata,
            **codec.components(params.scales, params.stored_shape, params.quant_type, params.state_dtype),
        }


class NativeLayout(PlainLayout):
    """The layout of 4-bit weights that bitsandbytes decodes; plain torch decodes where bitsandbytes cannot."""

    @classmethod
    def decode(cls, packed: Tensor, params: FourBitParams, dtype: torch.dtype) -> Tensor:
        if packed.device.type not in _BITSANDBYTES_DEVICES or dtype not in _BITSANDBYTES_DTYPES:
            return super().decode(packed, params, dtype)
        return bitsandbytes_functional().dequantize_4bit(packed.view(-1, 1), _quant_state(params, dtype))


register_layout_class(PLAIN, PlainLayout)
register_layout_class(NATIVE, NativeLayout)


def _params(
    scales: codec.Scales, shape: tuple[int, ...], quant_type: str, state_dtype: torch.dtype, dtype: torch.dtype
) -> FourBitParams:
    absmax, *others = scales
    fields: dict[str, Any] = dict(zip(codec.Scales._fields[1:], others, strict=True))
    fields |= {"orig_dtype": dtype, "orig_shape": shape, "quant_type": quant_type, "state_dtype": state_dtype}
    return FourBitParams(scale=absmax, **fields)


def four_bit_tensor(
    packed: Tensor,
    scales: codec.Scales,
    shape: tuple[int, ...],
    quant_type: str,
    *,
    standard_code: bool,
    state_dtype: torch.dtype,
    dtype: torch.dtype,
) -> QuantizedTensor:
    """Return a QuantizedTensor of `shape` over the bytes `packed` (uint8, two values in a byte), without a copy.
    bitsandbytes decodes it if the installed library supports this weight, else plain torch.

    standard_code: whether `scales.code` is the usual table of `quant_type`.
    state_dtype: the weight's dtype before quantization.
    dtype: the dtype of the tensor and of its decoded values.
    """
    # bitsandbytes ignores the file's table, and its CPU kernels (0.50.2) are wrong for rows that are not whole blocks.
    native = standard_code and shape[-1] % scales.blocksize == 0 and bitsandbytes_functional() is not None
    params = _params(scales, tuple(shape), quant_type, state_dtype, dtype)
    return QuantizedTensor(packed, NATIVE if native else PLAIN, params)


def kitchen_tensor(
    layout: str, values: Tensor, dtype: torch.dtype, shape: tuple[int, ...] | None = None, **fields: Any
) -> QuantizedTensor:
    """Return a QuantizedTensor over `values` in the comfy_kitchen layout named `layout`, without a copy. It decodes to
    `dtype` and `shape` (None: that of `values`). `fields` are the layout's other Params, such as `scale`."""
    params = get_layout_class(layout).Params(orig_dtype=dtype, orig_shape=tuple(shape or values.shape), **fields)
    return QuantizedTensor(values, layout, params)


def _quant_state(params: FourBitParams, dtype: torch.dtype) -> Any:
    functional = bitsandbytes_functional()
    outer = None
    if params.nested_absmax is not None:
        outer = functional.QuantState(
            absmax=params.nested_absmax, code=params.nested_code, blocksize=params.nested_blocksize, dtype=torch.float32
        )
    return functional.QuantState(
        absmax=params.scale,
        shape=torch.Size(params.stored_shape),
        code=params.code,
        blocksize=params.blocksize,
        quant_type=params.quant_type,
        dtype=dtype,
        offset=params.offset,
        state2=outer,
    )


def _decoded(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, QuantizedTensor):
        return value
    weight = value.layout_cls.decode(value._qdata, value._params, dtype)
    return weight.t() if value._params.transposed else weight


def _partner_dtype(args: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype to which a product's quantized operands are decoded: that of the last unquantized operand. If
    all operands are quantized, return the last operand's dtype."""
    plain = [arg.dtype for arg in args if not isinstance(arg, QuantizedTensor)]
    return plain[-1] if plain else args[-1].dtype


# comfy_kitchen calls these for an operation on a weight, with the weight and the operation's arguments and keywords.


@register_layout_op(torch.ops.aten.linear.default, PlainLayout)
def _linear(_weight: Any, args: tuple, _kwargs: dict) -> Tensor:
    x, weight, bias = (*args, None)[:3]
    dtype = _partner_dtype((weight, x))
    return F.linear(_decoded(x, dtype), _decoded(weight, dtype), bias)


@register_layout_op(torch.ops.aten.mm.default, PlainLayout)
def _mm(_weight: Any, args: tuple, _kwargs: dict) -> Tensor:
    dtype = _partner_dtype(args[:2])
    return torch.mm(*(_decoded(arg, dtype) for arg in args[:2]))


@register_layout_op(torch.ops.aten.addmm.default, PlainLayout)
def _addmm(_weight: Any, args: tuple, kwargs: dict) -> Tensor:
    # Outside inference_mode, F.linear with a bias calls this as addmm(bias, x, weight.t()).
    dtype = _partner_dtype(args[1:3])
    return torch.addmm(*(_decoded(arg, dtype) for arg in args[:3]), **kwargs)


@register_layout_op(torch.ops.aten.t.default, PlainLayout)
def _t(_weight: Any, args: tuple, _kwargs: dict) -> QuantizedTensor:
    weight = args[0]
    params = weight._params
    rotated = dataclasses.replace(params, orig_shape=params.orig_shape[::-1], transposed=not params.transposed)
    return QuantizedTensor(weight._qdata, weight._layout_cls, rotated)
