"""Matrix products of float8_e4m3fn or int8 numbers, by the kernels of choice/table.py or in plain torch."""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..choice.card import card_of
from ..choice.table import KITCHEN, Work
from ..choice.trials import KERNEL_TESTS, PREQUANTIZED, KernelTest, Size, register_kernel
from .implementation import on_its_gpu, or_else, slices
from .matrix_8bit import EightBit
from .pointwise import encode_8bit, gelu_, rescale_
from .rotation import GROUP, Rotated, encode_rotated, rotate

PRODUCT_TOKENS = 8192
"""An int8 product computes at most this many tokens in one step, to limit the memory of the int32 sums."""
CHOSEN: dict[tuple[str, torch.device], str] = {}
"""The kernel that `choose_arithmetic` selected, by number format ("int8" or "fp8") and GPU."""
MIN_INT8_TOKENS = 32
"""Int8 products of fewer tokens are padded to this number, the first power of 2 that torch._int_mm accepts (it needs
over 16)."""


def product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x [tokens, in] times weight [out, in] transposed, plus bias [out], as [tokens, out] in `dtype`."""
    if x.values.device.type != "cuda":
        return plain_product(x, weight, bias, dtype)
    fast = int8_product if x.values.dtype == torch.int8 else _fp8_product
    return (fast if torch.compiler.is_compiling() else _unless_broken(fast))(x, weight, bias, dtype)


@lru_cache
def _unless_broken(fast: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return or_else(fast, plain_product, fast.__name__.strip("_"))


def _fp8_product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    one_scale = CHOSEN.get(("fp8", x.values.device)) == "torch-one-scale"
    return (_fp8_then_scales if one_scale else _fp8_by_rows)(x, weight, bias, dtype)


def _fp8_then_scales(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    # a bf16 result cannot overflow: its range exceeds 448 * 448 times any width
    one = torch.ones((), device=x.values.device)
    sums = torch._scaled_mm(x.values, weight.values.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    out = torch.empty_like(sums, dtype=dtype)
    return rescale_(out, sums, x.scales, weight.scales.view(-1), bias)


def _fp8_by_rows(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    bias = None if bias is None else bias.bfloat16()
    return torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales,
        scale_b=weight.scales.view(1, -1),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,  # fp32 sums would be slower, and lower the error only from 0.0266 to 0.0265
    ).to(dtype)


def int8_product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    out = torch.empty(len(x.values), len(weight.values), dtype=dtype, device=x.values.device)
    for part in slices(len(out), PRODUCT_TOKENS):
        values = x.values[part]
        count = len(values)
        if count < MIN_INT8_TOKENS:
            values = F.pad(values, (0, 0, 0, MIN_INT8_TOKENS - count))
        sums = torch._int_mm(values, weight.values.t())[:count]
        rescale_(out[part], sums, x.scales[part], weight.scales.view(-1), bias)
        del sums  # frees memory before the next sums are computed
    return out


@register_kernel("int8", KITCHEN)
def _try_kitchen(x: Tensor, weight: EightBit, bias: Tensor | None, rotated: EightBit | None) -> Tensor:
    if rotated is None:
        raise RuntimeError("it cannot rotate int8 weights; update comfy-kitchen")
    made = _kitchen_product(x, rotated, bias, x.dtype)
    if len(x) == Size().rows:  # the accuracy test, which is not timed; 4-bit weights are not rotated
        made[::2] = _kitchen_product(x, weight, bias, x.dtype)[::2]
    return made


def _register(work: Work, name: str, run: Callable[..., Tensor]) -> None:
    """Register a kernel `name` for the operation `work`. The kernel quantizes its input, then calls `run`, the 8-bit
    product. Also add an entry to PREQUANTIZED, for timing the product without the quantization."""

    def make(x: Tensor, weight: EightBit, bias: Tensor | None, *_rotated: EightBit | None) -> Callable[[], Tensor]:
        return partial(run, encode_8bit(x, dtype=weight.values.dtype), weight, bias, x.dtype)

    PREQUANTIZED[work, name] = make
    register_kernel(work, name)(lambda *given: make(*given)())


_register("int8", "torch", int8_product)
_register("fp8", "torch", _fp8_by_rows)
_register("fp8", "torch-one-scale", _fp8_then_scales)


@on_its_gpu
def _kitchen_product(
    x: Tensor, weight: EightBit, bias: Tensor | None, dtype: torch.dtype, gelu: bool = False
) -> Tensor:
    """Return the int8 matrix product of comfy-kitchen in `dtype`. `gelu` applies GELU to x first. Raise RuntimeError if
    comfy-kitchen would use plain torch."""
    kitchen = import_module("comfy_kitchen")
    arguments: dict[str, Any] = {"x": x, "weight": weight.values, "weight_scale": weight.scales.view(-1), "bias": bias}
    if isinstance(weight, Rotated):
        arguments |= {"convrot": True, "convrot_groupsize": GROUP}
    if gelu:
        arguments["input_act"] = "gelu_tanh"
    backend = kitchen.registry.get_capable_backend("int8_linear", {**arguments, "out_dtype": dtype})
    if backend not in ("cuda", "hip"):
        raise RuntimeError(f"comfy-kitchen would multiply int8 by its {backend} code")
    return kitchen.int8_linear(**arguments, out_dtype=dtype)


def _without_kitchen(
    x: Tensor, weight: EightBit, bias: Tensor | None, dtype: torch.dtype, gelu: bool = False
) -> Tensor:
    x = gelu_(x) if gelu else x
    x = rotate(x) if isinstance(weight, Rotated) else x
    return product(encode_8bit(x, dtype=weight.values.dtype), weight, bias, dtype)


@cache
def kitchen_takes_gelu(device: torch.device) -> bool:
    """Whether comfy-kitchen's int8 kernel can apply GELU before it quantizes an input. False for old versions and on
    Turing GPUs."""
    turing = card_of(device).capability[0] == 7
    return not turing and "input_act" in signature(import_module("comfy_kitchen").int8_linear).parameters


kitchen_or_torch = or_else(_kitchen_product, _without_kitchen, "int8_linear of comfy-kitchen")


def _random_int8(device: torch.device, size: Size) -> tuple[Tensor, EightBit, Tensor, EightBit | None]:
    x, weight, bias = _random_product(torch.int8)(device, size)
    if size.dim % GROUP:
        return x, weight, bias, weight
    try:
        return x, weight, bias, encode_rotated((weight.values * weight.scales).bfloat16())
    except torch.OutOfMemoryError:
        raise
    except Exception:  # an old or a broken comfy-kitchen; torch's kernel is tried all the same
        return x, weight, bias, None


def _random_product(dtype: torch.dtype) -> Callable[[torch.device, Size], tuple[Tensor, EightBit, Tensor]]:
    def make(device: torch.device, size: Size) -> tuple[Tensor, EightBit, Tensor]:
        generator = torch.Generator(device).manual_seed(0)
        shapes = (size.rows, size.dim), (size.out, size.dim), (size.out,)
        x, weight, bias = (torch.randn(shape, device=device, generator=generator).bfloat16() for shape in shapes)
        return x, encode_8bit(weight, dtype=dtype), bias

    return make


def _exact_product(x: Tensor, weight: EightBit, bias: Tensor, *_rotated: EightBit | None) -> Tensor:
    return F.linear(x.float(), weight.values.float() * weight.scales, bias.float())


@register_kernel("linear", "torch")
def _try_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias)


def _random_linear(device: torch.device, size: Size) -> tuple[Tensor, Tensor, Tensor]:
    x, weight, bias = _random_product(torch.int8)(device, size)
    return x, weight.values.bfloat16() * (1 / 128), bias


KERNEL_TESTS["linear"] = KernelTest(
    _random_linear, lambda x, weight, bias: F.linear(x.float(), weight.float(), bias.float()), 0.01
)
KERNEL_TESTS["int8"] = KernelTest(_random_int8, _exact_product, 0.02)
KERNEL_TESTS["fp8"] = KernelTest(_random_product(torch.float8_e4m3fn), _exact_product, 0.05)


def plain_product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return x [tokens, in] times weight [out, in] transposed, plus bias [out], in `dtype`, by plain torch."""
    # 8-bit operands are exact in bf16, and fp32 is slower
    exact = torch.bfloat16 if x.values.device.type == "cuda" and dtype == torch.bfloat16 else torch.float32
    products = F.linear(x.values.to(exact), weight.values.to(exact))
    out = torch.empty_like(products, dtype=dtype)
    return rescale_(out, products, x.scales, weight.scales.view(-1), bias)
