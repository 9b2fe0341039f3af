"""Linear layers whose products are computed from 8-bit operands: float8_e4m3fn ("fp8") or int8.

A weight has a scale for each output channel, an activation for each token. Where several layers take the same
activation it is put into 8 bits once, and norms and activation functions write 8 bits at once. On the CPU, and on a GPU
whose kernel fails, the products are those of the same 8-bit operands in plain torch."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError
from ...options import Arithmetic
from ..config import ModelConfig
from .matrix_8bit import EightBit
from .pointwise import Rows, add_norm, encode_8bit, gelu_, layer_norm, layer_norm_8bit, or_else, rescale_, slices

DTYPES: dict[str, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
OLDEST = {"fp8": (8, 9), "int8": (7, 5)}
"""Compute capability of the first NVIDIA cards with such products."""
MULTIPLE = 16
"""The kernels take matrices whose sides are multiples of this."""
PRODUCT_TOKENS = 8192
"""Tokens whose int32 sums exist at once."""
LEAST_INT8_TOKENS = 32
"""A product is given at least so many tokens: torch._int_mm refuses fewer than 17."""


def choose_arithmetic(wanted: Arithmetic, device: torch.device, config: ModelConfig) -> Literal["bf16", "fp8", "int8"]:
    """The arithmetic of a model on a device. 8 bits are taken only if they are asked for. Raises InputError where the
    device or the model's sizes do not allow them."""
    if wanted in ("auto", "bf16"):
        return "bf16"
    check_nvidia(f"`arithmetic` {wanted}", device)
    if device.type == "cuda":
        found, least = torch.cuda.get_device_capability(device), OLDEST[wanted]
        if found < least:
            others = " or take int8" if wanted == "fp8" and found >= OLDEST["int8"] else ""
            raise InputError(
                f"`arithmetic` {wanted} needs a GPU of compute capability {least[0]}.{least[1]} or later, "
                f"{torch.cuda.get_device_name(device)} has {found[0]}.{found[1]}; leave it out{others}"
            )
    if config.dim % MULTIPLE or config.ffn_dim % MULTIPLE:
        raise InputError(
            f"`arithmetic` {wanted} takes widths that are multiples of {MULTIPLE}, this model has "
            f"{config.dim} and {config.ffn_dim}; leave it out"
        )
    return "fp8" if wanted == "fp8" else "int8"


def check_nvidia(option: str, device: torch.device) -> None:
    """Raises InputError for what `option` asks of a device that is neither an NVIDIA GPU nor the CPU."""
    kind = "an AMD GPU" if device.type == "cuda" and torch.version.hip is not None else device.type
    if kind not in ("cpu", "cuda"):
        raise InputError(f"{option} needs an NVIDIA GPU, this is {kind}; leave it out")


class EightBitLayer:
    """A linear layer as a function of its input, which it puts into 8 bits if it is not. `weight` [out, in], `bias`
    [out] in the dtype of the result."""

    def __init__(self, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight, self._bias, self.dtype = weight, bias, dtype
        self.input_dtype = weight.values.dtype

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The weight's values and scales, and the bias."""
        return *self._weight, self._bias

    def of(self, values: Tensor, scales: Tensor, bias: Tensor | None) -> "EightBitLayer":
        """A layer of such parts."""
        return EightBitLayer(EightBit(values, scales), bias, self.dtype)

    def __call__(self, x: Rows) -> Tensor:
        if not isinstance(x, EightBit):
            x = encode_8bit(x, dtype=self.input_dtype)
        return product(x, self._weight, self._bias, self.dtype)


def eight_bit_weight(weight: Tensor, device: torch.device, dtype: torch.dtype) -> EightBit:
    """A weight [out, in] with a scale for each output channel; a 4-bit one is recoded in one pass."""
    if hasattr(weight, "recode"):
        return weight.recode(dtype)
    return encode_8bit(weight.detach().to(device), dtype=dtype)


def input_dtype(*layers: Any) -> torch.dtype | None:
    """The 8-bit dtype that all of these layers take. None where one of them computes in another way."""
    dtypes = {getattr(layer, "input_dtype", None) for layer in layers}
    return dtypes.pop() if len(dtypes) == 1 else None


def normed(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, *layers: Any) -> Rows:
    """`layer_norm` of x as these layers take it: in 8 bits, else in `dtype`."""
    eight_bit = input_dtype(*layers)
    if eight_bit is None:
        return layer_norm(x, weight, bias, eps, dtype)
    return layer_norm_8bit(x, weight, bias, eps, eight_bit)


def sum_normed(
    x: Tensor,
    added: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    dtype: torch.dtype,
    *layers: Any,
) -> Rows:
    """`add_norm` of x as these layers take it: in 8 bits, else in `dtype`."""
    return add_norm(x, added, affine, weight, bias, eps, input_dtype(*layers) or dtype)


def taken(x: Tensor, layer: Any) -> Rows:
    """x as the layer takes it: in 8 bits, else as it is."""
    eight_bit = input_dtype(layer)
    return x if eight_bit is None else encode_8bit(x, dtype=eight_bit)


def activated(x: Tensor, activation: Literal["gelu", "silu"], layer: Any) -> Rows:
    """An activation function of x as the layer takes it: in 8 bits, else in place."""
    eight_bit = input_dtype(layer)
    if eight_bit is not None:
        return encode_8bit(x, dtype=eight_bit, activation=activation)
    return gelu_(x) if activation == "gelu" else F.silu(x, inplace=True)


def shared_sum(x: Tensor, added: Tensor, *layers: Any) -> Rows:
    """x and what is `added` as these layers take it: in 8 bits, else in place."""
    eight_bit = input_dtype(*layers)
    return x.add_(added) if eight_bit is None else encode_8bit(x, dtype=eight_bit, added=added)


def product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x [tokens, in] times weight [out, in], plus bias, in `dtype`."""
    if x.values.device.type != "cuda":
        return _plain_product(x, weight, bias, dtype)
    fast = _int8_product if x.values.dtype == torch.int8 else _fp8_product
    return (fast if torch.compiler.is_compiling() else _unless_broken(fast))(x, weight, bias, dtype)


@lru_cache
def _unless_broken(fast: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return or_else(fast, _plain_product, fast.__name__.strip("_"))


def _fp8_product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """With a scale a row torch computes bf16 only. Sums are those of the tensor cores (`use_fast_accum`). With fp32
    sums an H200 takes 5 to 14 % longer, and the error is 0.0265 in place of 0.0266."""
    bias = None if bias is None else bias.bfloat16()
    return torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales,
        scale_b=weight.scales.view(1, -1),
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    ).to(dtype)


def _int8_product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    out = torch.empty(len(x.values), len(weight.values), dtype=dtype, device=x.values.device)
    for part in slices(len(out), PRODUCT_TOKENS):
        values = x.values[part]
        count = len(values)
        if count < LEAST_INT8_TOKENS:
            values = F.pad(values, (0, 0, 0, LEAST_INT8_TOKENS - count))
        sums = torch._int_mm(values, weight.values.t())[:count]
        rescale_(out[part], sums, x.scales[part], weight.scales.view(-1), bias)
        del sums  # before the next ones are made
    return out


def _plain_product(x: EightBit, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The operands are exact in bf16 too, in which a GPU multiplies faster than in fp32."""
    exact = torch.bfloat16 if x.values.device.type == "cuda" and dtype == torch.bfloat16 else torch.float32
    products = F.linear(x.values.to(exact), weight.values.to(exact))
    out = torch.empty_like(products, dtype=dtype)
    return rescale_(out, products, x.scales, weight.scales.view(-1), bias)


def arithmetic_note(arithmetic: Arithmetic, device: torch.device) -> str | None:
    """What should be known of an arithmetic that gains little or nothing on this device; else None."""
    if arithmetic in ("auto", "bf16"):
        return None
    if device.type == "cpu":
        return f"{arithmetic} on the CPU gives a GPU's quality, and takes longer than without it."
    if arithmetic == "int8" and torch.cuda.get_device_capability(device)[0] in (9, 10):
        return f"int8 is hardly faster than bf16 on {torch.cuda.get_device_name(device)}; fp8 is."
    return None
