"""The linear and norm layers, and the functions through which the model reads a layer's weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from ...options import Arithmetic
from ..ops.implementation import or_else
from ..ops.linear_8bit import DTYPES, EightBitLayer, eight_bit_weight, input_dtype, rotates
from ..ops.pointwise import gelu_
from ..quantized.own_format import own_format_layer

Layer = Callable[[Any], Tensor]
"""A function that applies a layer to activations [tokens, in] and returns [tokens, out]. A layer in 8 bits also takes
an EightBit."""

Operations: TypeAlias = Any
"""A namespace of layer classes with the names and constructors of those in `TorchOperations`."""


def materialise(weight: Tensor, reference: Tensor) -> Tensor:
    """Return a plain or quantized weight as a plain tensor in the dtype of `reference`. A weight with a method `decode`
    stays on its device, others move to that of `reference`."""
    if hasattr(weight, "decode"):
        return weight.decode(reference.dtype)
    weight = weight.to(device=reference.device, dtype=reference.dtype)
    return weight.dequantize() if hasattr(weight, "_qdata") else weight


def _cast(tensor: Tensor | None, reference: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.to(device=reference.device, dtype=reference.dtype)


class Linear(torch.nn.Linear):
    """A linear layer with a plain or quantized weight, which computes in its input's dtype.

    arithmetic: the number format of matrix products inside the context manager `prepared`. Layers with `changes` ignore
    8-bit formats.
    own_format: with 8-bit `arithmetic`, whether NVFP4 and MXFP8 weights multiply in NVFP4 and MXFP8 instead.
    changes: LoRAs to add to the weight, as matrices or pairs of factors.
    """

    arithmetic: Arithmetic = "bf16"
    own_format = False
    changes: Sequence[tuple[Tensor, Tensor | None]] = ()

    def reset_parameters(self) -> None:
        """Leave the parameters uninitialized, because all weights are loaded later."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.changed_weight(x), _cast(self.bias, x))

    def changed_weight(self, reference: Tensor) -> Tensor:
        """Return the decoded weight [out, in] plus all `changes`, in the dtype of `reference`."""
        weight = materialise(self.weight, reference)
        for one, other in self.changes:
            one = one.to(reference.dtype)
            weight = weight + one if other is None else torch.addmm(weight, one, other.to(reference.dtype))
        return weight


class Conv3d(torch.nn.Conv3d):
    """A 3-D convolution that computes in its input's dtype."""

    def reset_parameters(self) -> None:
        """Leave the parameters uninitialized, because all weights are loaded later."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, materialise(self.weight, x), _cast(self.bias, x))


class LayerNorm(torch.nn.LayerNorm):
    """A layer norm that computes in its input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = norm_parameters(self, x)
        return F.layer_norm(x, self.normalized_shape, _cast(weight, x), _cast(bias, x), self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """A root-mean-square norm that computes in its input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, _cast(norm_parameters(self, x)[0], x), self.eps)


class TorchOperations:
    """The namespace of this module's layer classes. Their constructors take the arguments of torch.nn's layers."""

    Linear = Linear
    Conv3d = Conv3d
    LayerNorm = LayerNorm
    RMSNorm = RMSNorm


@contextmanager
def prepared(layer: torch.nn.Module, reference: Tensor) -> Iterator[Layer]:
    """Yield a function that applies a linear layer to inputs with the device and dtype of `reference`. The weight is
    decoded or quantized once, and freed on exit. A layer with hooks is yielded unchanged."""
    own = getattr(layer, "prepared", None)
    if "forward" in vars(layer) or layer._forward_hooks or layer._forward_pre_hooks:
        yield layer
    elif own is not None:
        with own(reference) as function:
            yield function
    elif isinstance(layer, Linear) and type(layer).forward is Linear.forward:
        bias, dtype = _cast(layer.bias, reference), DTYPES.get(layer.arithmetic)
        if dtype is not None and not layer.changes:
            own = own_format_layer(layer.weight, bias, reference.dtype) if layer.own_format else None
            yield own or _eight_bit_layer(layer, bias, reference, dtype)
        else:
            yield ExactLayer(layer.changed_weight(reference), bias)
    else:
        yield layer


def _eight_bit_layer(layer: Linear, bias: Tensor | None, reference: Tensor, dtype: torch.dtype) -> EightBitLayer:
    rotated = rotates(layer.in_features, dtype, reference.device)
    return EightBitLayer(eight_bit_weight(layer.weight, reference.device, dtype, rotated), bias, reference.dtype)


@contextmanager
def prepared_layers(reference: Tensor, *layers: torch.nn.Module) -> Iterator[tuple[Layer, ...]]:
    """Yield a function for each linear layer, with its weight decoded or quantized for inputs like `reference` in
    device and dtype. The decoded or quantized weights are freed when the context ends."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(prepared(layer, reference)) for layer in layers)


class ExactLayer:
    """A callable linear layer without 8-bit quantization. Inputs must have the weight's dtype.

    parts: the decoded weight [out, in], and the bias [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.parts = weight, bias

    def with_parts(self, weight: Tensor, bias: Tensor | None) -> "ExactLayer":
        return ExactLayer(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.parts)

    def gelu(self, x: Tensor) -> Tensor:
        """Return GELU (tanh form) of the layer's result for x [tokens, in]. If one kernel can compute product and GELU,
        the result is rounded only once."""
        weight, bias = self.parts
        nvidia = torch.version.cuda is not None and x.is_cuda and not torch.compiler.is_compiling()
        if nvidia and bias is not None and x.element_size() == 2:
            return _product_with_gelu(x, weight, bias)
        return _product_then_gelu(x, weight, bias)


def _product_then_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return gelu_(F.linear(x, weight, bias))


def _in_one_kernel(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


_product_with_gelu = or_else(_in_one_kernel, _product_then_gelu, "GELU of a product")


def gelu_layer(layer: Layer, following: Layer) -> Layer | None:
    """Return a function that applies `layer`, an ExactLayer, and then GELU. Return None for another class. Also return
    None if the next layer, `following`, takes 8-bit inputs: their quantization can include GELU."""
    return layer.gelu if isinstance(layer, ExactLayer) and input_dtype(following) is None else None


def joined(*layers: Any) -> Layer | None:
    """Return one layer that concatenates the results of `layers`. Return None unless the layers have the same class,
    each has a bias, and their tensors are adjacent in memory."""
    kind = type(layers[0])
    if kind not in (ExactLayer, EightBitLayer) or any(type(layer) is not kind for layer in layers):
        return None
    whole = [_spanning_view(parts) for parts in zip(*(layer.parts for layer in layers), strict=True)]
    return None if any(part is None for part in whole) else layers[0].with_parts(*whole)


def _spanning_view(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return one tensor over the memory of all `tensors`. Return None if one of them is None, or if they are not
    adjacent in memory."""
    first, total = tensors[0], 0
    for tensor in tensors:
        if first is None or tensor is None or not tensor.is_contiguous():
            return None
        if tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or tensor.dtype != first.dtype:
            return None
        if tensor.data_ptr() != first.data_ptr() + total:
            return None
        total += tensor.nbytes
    assert first is not None
    return first.as_strided((total // first[0].nbytes, *first.shape[1:]), first.stride())


def norm_parameters(layer: torch.nn.Module, reference: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a norm's weight [dim], and its bias [dim] or None, on the device of `reference`. ComfyUI's layers return
    both in the dtype of `reference`, other layers in the stored dtype."""
    own = getattr(layer, "norm_parameters", None)
    if own is not None:
        return own(reference)
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    return weight.to(reference.device), None if bias is None else bias.to(reference.device)
