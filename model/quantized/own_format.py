"""Matrix products of weights in NVFP4 or MXFP8 with inputs in the same format, by comfy-kitchen."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..choice.table import KITCHEN, Work
from ..choice.trials import KERNEL_TESTS, KernelTest, Size, register_kernel, works
from ..ops.implementation import on_its_gpu, or_else
from .parameters import LayoutParameter, load_layouts

LAYOUTS: dict[Work, str] = {"nvfp4": "TensorCoreNVFP4Layout", "mxfp8": "TensorCoreMXFP8Layout"}
"""The names of comfy-kitchen's layouts, by the format of the weight."""
FORMATS = {layout: form for form, layout in LAYOUTS.items()}
WORST: dict[Work, float] = {"nvfp4": 0.2, "mxfp8": 0.05}
"""The maximum relative RMS error of a product that passes the accuracy test, by the format of the weight."""


class OwnFormatLayer:
    """A callable linear layer that quantizes its input x [tokens, in] to the weight's format and multiplies in that
    format."""

    input_dtype = None

    def __init__(self, weight: LayoutParameter, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight, self._bias, self._dtype = weight, bias, dtype

    def __call__(self, x: Tensor) -> Tensor:
        return multiply(x, self._weight, self._bias, self._dtype)


def own_format_layer(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> OwnFormatLayer | None:
    """Return a linear layer that quantizes its input to the weight's format, with results in `dtype`. Return None if
    the format or the GPU does not support that."""
    if not isinstance(weight, LayoutParameter) or not has_kernel(weight.layout_name, weight.device, dtype):
        return None
    return OwnFormatLayer(weight, bias, dtype)


def has_kernel(layout: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the GPU can multiply quantized weights of a comfy_kitchen layout without decoding them, with
    results in `dtype`."""
    form = FORMATS.get(layout)
    return form is not None and dtype in (torch.bfloat16, torch.float16) and _computes(form, device)


@lru_cache
def _computes(form: Work, device: torch.device) -> bool:
    return device.type == "cuda" and works(form, KITCHEN, device, Size())


@on_its_gpu
def kitchen_multiply(x: Tensor, weight: LayoutParameter, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x [tokens, in] @ weight.T + bias by comfy-kitchen, for weight [out, in]. Raise RuntimeError if
    comfy-kitchen has no kernel for this GPU."""
    kitchen, form, own = import_module("comfy_kitchen"), FORMATS[weight.layout_name], weight.fields
    values, params = _layout(form).quantize(x.contiguous())
    arguments: dict[str, Any] = {"a": values, "b": weight.data, "bias": bias, "out_dtype": dtype}
    if form == "nvfp4":
        arguments |= {"tensor_scale_a": params.scale, "tensor_scale_b": own["scale"]}
        arguments |= {"block_scale_a": params.block_scale, "block_scale_b": own["block_scale"]}
    else:
        arguments |= {"block_scale_a": params.scale, "block_scale_b": own["scale"]}
    backend = kitchen.registry.get_capable_backend(f"scaled_mm_{form}", arguments)
    if backend not in ("cuda", "hip"):
        raise RuntimeError(f"comfy-kitchen would multiply {form} by its {backend} code")
    return getattr(kitchen, f"scaled_mm_{form}")(**arguments)[: len(x)]


def torch_multiply(x: Tensor, weight: LayoutParameter, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Round x [tokens, in] to the weight's format, then compute x @ weight.T + bias with torch's operations."""
    form = FORMATS[weight.layout_name]
    rounded = _encoded(x.float(), form).decode(torch.float32)[: len(x)]
    made = F.linear(rounded, weight.decode(torch.float32), None if bias is None else bias.float())
    return made.to(dtype)


multiply = or_else(kitchen_multiply, torch_multiply, "comfy-kitchen's product of NVFP4 or MXFP8")


def _layout(form: Work) -> Any:
    return load_layouts().get_layout_class(LAYOUTS[form])


def _encoded(x: Tensor, form: Work) -> LayoutParameter:
    layout = _layout(form)
    values, params = layout.quantize(x)
    fields = {"scale": params.scale} | ({"block_scale": params.block_scale} if form == "nvfp4" else {})
    return LayoutParameter.of(values, LAYOUTS[form], layout.get_padded_shape(tuple(x.shape)), fields)


def _random(form: Work, device: torch.device, size: Size) -> tuple[Tensor, LayoutParameter, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    shapes = (size.rows, size.dim), (size.out, size.dim), (size.out,)
    x, weight, bias = (torch.randn(shape, device=device, generator=generator).bfloat16() for shape in shapes)
    return x, _encoded(weight, form), bias


def _exact(x: Tensor, weight: LayoutParameter, bias: Tensor) -> Tensor:
    return F.linear(x.float(), weight.decode(torch.float32), bias.float())


def _register(form: Work) -> None:
    make: Callable[[torch.device, Size], tuple[Any, ...]] = partial(_random, form)
    KERNEL_TESTS[form] = KernelTest(make, _exact, WORST[form])
    register_kernel(form, KITCHEN)(lambda x, weight, bias: kitchen_multiply(x, weight, bias, x.dtype))


for _form in LAYOUTS:
    _register(_form)
