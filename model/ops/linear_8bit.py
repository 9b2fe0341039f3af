"""Linear layers that multiply 8-bit numbers, float8_e4m3fn ("fp8") or int8, scaled by output channel and by token."""

from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError
from ...options import Arithmetic
from ..choice.card import card_of
from ..choice.table import KITCHEN, candidates, preferred_8bit_format
from ..choice.trials import Size, chosen, trials
from ..config import ModelConfig
from .matrix_8bit import EightBit
from .pointwise import Rows, add_norm, encode_8bit, gelu_, layer_norm, layer_norm_8bit
from .products_8bit import CHOSEN, kitchen_or_torch, kitchen_takes_gelu, product
from .rotation import GROUP, Rotated, encode_rotated

DTYPES: dict[str, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
MULTIPLE = 16
"""A weight's height and width must be multiples of this number for 8-bit products."""
_FIRST_CARDS = {
    "fp8": "an NVIDIA GPU of compute capability 8.9 or later",
    "int8": "an NVIDIA GPU of compute capability 7.5 or later, or an AMD GPU",
}
TRIED_ROWS = 4096
"""The number of tokens in the matrix products with which the 8-bit kernels are timed."""


def choose_arithmetic(wanted: Arithmetic, device: torch.device, config: ModelConfig) -> Literal["bf16", "fp8", "int8"]:
    """Return the number format of a model's matrix products: "fp8", "int8", or "bf16" for products without
    quantization. Side effect for 8 bits on a GPU: selects the fastest kernel for later products. Raise InputError if
    device or model sizes do not allow `wanted`."""
    if wanted in ("auto", "bf16"):
        return "bf16"
    if config.dim % MULTIPLE or config.ffn_dim % MULTIPLE:
        raise InputError(
            f"`arithmetic` {wanted} takes widths that are multiples of {MULTIPLE}, this model has "
            f"{config.dim} and {config.ffn_dim}; leave it out"
        )
    arithmetic = cast(Literal["fp8", "int8"], suited_arithmetic(wanted, device))
    if device.type != "cpu":
        _choose_products(arithmetic, wanted, device, config)
    return arithmetic


def suited_arithmetic(wanted: Arithmetic, device: torch.device) -> Arithmetic:
    """Return "fp8" or "int8", whichever suits the device, if `wanted` is "8bit", else `wanted` itself."""
    return preferred_8bit_format(card_of(device)) if wanted == "8bit" else wanted


def _choose_products(
    arithmetic: Literal["fp8", "int8"], wanted: str, device: torch.device, config: ModelConfig
) -> None:
    card, size = card_of(device), tried_size(config)
    leave = "leave it out or take int8" if arithmetic == "fp8" and candidates("int8", card) else "leave it out"
    if not candidates(arithmetic, card):
        raise InputError(f"`arithmetic` {wanted} needs {_FIRST_CARDS[arithmetic]}, this is {card.known_as}; {leave}")
    name = chosen(arithmetic, device, size)
    if name is None:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in trials(arithmetic, device, size))
        raise InputError(
            f"`arithmetic` {wanted}: no product in {arithmetic} is right on {card.known_as} ({reasons}); {leave}"
        )
    if device.type == "cuda":
        CHOSEN[arithmetic, _indexed(device)] = name


def tried_size(config: ModelConfig) -> Size:
    """Return the size of the matrix product on which a model's 8-bit kernels are compared: TRIED_ROWS tokens times the
    weight of the first feed-forward layer."""
    return Size(TRIED_ROWS, 0, config.dim, config.ffn_dim, config.head_dim)


class EightBitLayer:
    """A callable linear layer with an 8-bit weight [out, in]. The bias [out] and the result are in `dtype`.

    input_dtype: the 8-bit dtype of inputs; None if the kernel quantizes them.
    applies_gelu: whether a call first applies GELU (tanh form) to its input.
    """

    def __init__(self, weight: EightBit, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._weight, self._bias, self.dtype = weight, bias, dtype
        self._encodes = isinstance(weight, Rotated) or encodes_inputs(weight.values)
        self.input_dtype = None if self._encodes else weight.values.dtype
        self.applies_gelu = False

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The weight's values and scales, and the bias."""
        return *self._weight, self._bias

    def with_parts(self, values: Tensor, scales: Tensor, bias: Tensor | None) -> "EightBitLayer":
        """Return a layer with these tensors, in this layer's `dtype`. The weight counts as rotated (see rotation.py) if
        this layer's weight is rotated."""
        return EightBitLayer(type(self._weight)(values, scales), bias, self.dtype)

    def after_gelu(self) -> "EightBitLayer":
        """Return a copy of this layer that first applies GELU to its input, or this layer if its kernel cannot apply
        GELU."""
        if not isinstance(self._weight, Rotated) or not kitchen_takes_gelu(self._weight.values.device):
            return self
        layer = EightBitLayer(self._weight, self._bias, self.dtype)
        layer.applies_gelu = True
        return layer

    def __call__(self, x: Rows) -> Tensor:
        if isinstance(x, EightBit):
            return product(x, self._weight, self._bias, self.dtype)
        if self._encodes:
            return kitchen_or_torch(x, self._weight, self._bias, self.dtype, self.applies_gelu)
        return product(encode_8bit(x, dtype=self._weight.values.dtype), self._weight, self._bias, self.dtype)


def encodes_inputs(values: Tensor) -> bool:
    """Whether the kernel for the 8-bit weight `values` [out, in] quantizes its inputs itself. True for comfy-kitchen's
    int8 kernel, except during torch.compile."""
    return _by_kitchen(values.dtype, values.device)


def rotates(width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a weight of `width` columns should be rotated (see rotation.py). True for comfy-kitchen's int8 kernel, if
    `width` is a multiple of GROUP."""
    return width % GROUP == 0 and _by_kitchen(dtype, device)


def _by_kitchen(dtype: torch.dtype, device: torch.device) -> bool:
    if dtype != torch.int8 or device.type != "cuda" or torch.compiler.is_compiling():
        return False
    return CHOSEN.get(("int8", _indexed(device))) == KITCHEN


def _indexed(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.device(device.type, torch.cuda.current_device())


def eight_bit_weight(weight: Tensor, device: torch.device, dtype: torch.dtype, rotated: bool) -> EightBit:
    """Return a weight [out, in] in the 8-bit `dtype` with a scale per output channel. `rotated` requests a Hadamard
    rotation before quantization. A quantized weight stays on its device, others move to `device`."""
    if hasattr(weight, "recode"):
        return weight.recode(dtype, rotated)
    weight = weight.detach().to(device)
    return encode_rotated(weight.bfloat16()) if rotated else encode_8bit(weight, dtype=dtype)


def input_dtype(*layers: Any) -> torch.dtype | None:
    """Return the 8-bit input dtype that all layers share, or None."""
    dtypes = {getattr(layer, "input_dtype", None) for layer in layers}
    return dtypes.pop() if len(dtypes) == 1 else None


def normed(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, *layers: Any) -> Rows:
    """Return the layer norm of x [tokens, dim] in the 8-bit input dtype that all `layers` share, else in `dtype`."""
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
    """Replace x by (x + y * gate) * (1 + scale) + shift. Return layer_norm(x) * weight + bias for the new x, in the
    8-bit dtype that all `layers` take as input, or else in `dtype`.

    added: y and gate; y of None skips the addition.
    affine: scale and shift, or None for both.
    """
    return add_norm(x, added, affine, weight, bias, eps, input_dtype(*layers) or dtype)


def as_input(x: Tensor, layer: Any) -> Rows:
    """Return x [tokens, dim] in the 8-bit input dtype of `layer`, or x itself if `layer` has none."""
    eight_bit = input_dtype(layer)
    return x if eight_bit is None else encode_8bit(x, dtype=eight_bit)


def activated(x: Tensor, activation: Literal["gelu", "silu"], layer: Any) -> Rows:
    """Return activation(x) [tokens, dim] in the 8-bit input dtype of `layer`. If `layer` takes no 8-bit input, keep the
    dtype of x. If `layer` applies the activation itself, return x. x may be overwritten."""
    if getattr(layer, "applies_gelu", False):
        return x
    eight_bit = input_dtype(layer)
    if eight_bit is not None:
        return encode_8bit(x, dtype=eight_bit, activation=activation)
    return gelu_(x) if activation == "gelu" else F.silu(x, inplace=True)


def shared_sum(x: Tensor, added: Tensor, *layers: Any) -> Rows:
    """Return x + added [tokens, dim] in the 8-bit input dtype that all `layers` share. If they share none, add to x in
    place, and return x."""
    eight_bit = input_dtype(*layers)
    return x.add_(added) if eight_bit is None else encode_8bit(x, dtype=eight_bit, added=added)


def arithmetic_note(wanted: Arithmetic, device: torch.device, config: ModelConfig) -> str | None:
    """Return a note for the user on the kernel or speed of 8-bit matrix multiplication on a device, or None for bf16.
    Raise InputError if the device or the model's sizes do not allow `wanted`."""
    arithmetic = choose_arithmetic(wanted, device, config)
    if arithmetic == "bf16":
        return None
    if device.type == "cpu":
        return f"{arithmetic} on the CPU gives a GPU's quality, and takes longer than without it."
    name = chosen(arithmetic, device, tried_size(config))
    made = f"Products in {arithmetic} by {name}."
    if name == "torch-one-scale":
        made = "Products in fp8 by torch with one scale, and the rows' scales after it: this build has no other."
    if arithmetic == "int8" and preferred_8bit_format(card_of(device)) == "fp8":
        return f"int8 is hardly faster than bf16 on {card_of(device).name}; fp8 is."
    return made
