"""The model's linear and norm layers, and the functions through which the model reads their weights.

A host application such as ComfyUI may provide its own layer classes, which may keep weights on another device, in
another dtype or quantized, and may apply LoRAs. So the model never reads `layer.weight`, but calls `prepared` for a
linear layer and `norm_parameters` for a norm, once for all batch elements.
"""

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
"""A function that applies a layer to activations [tokens, in] and returns activations [tokens, out]. Its argument is a
Tensor, or for a layer in 8 bits also an EightBit (8-bit values with scales)."""

Operations: TypeAlias = Any
"""A namespace of layer classes with the names and constructors of those in `TorchOperations`."""


def materialise(weight: Tensor, reference: Tensor) -> Tensor:
    """Return a weight as a plain tensor in the dtype of `reference`. A DecodedParameter is decoded on its own device.
    Other weights are moved to the device of `reference`, and comfy_kitchen's QuantizedTensor is dequantized there."""
    if hasattr(weight, "decode"):
        return weight.decode(reference.dtype)
    weight = weight.to(device=reference.device, dtype=reference.dtype)
    return weight.dequantize() if hasattr(weight, "_qdata") else weight


def _cast(tensor: Tensor | None, reference: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.to(device=reference.device, dtype=reference.dtype)


class Linear(torch.nn.Linear):
    """A linear layer with a plain or quantized weight (see `materialise`).

    A call of the layer computes in its input's dtype. The attributes control the function that `prepared` yields for
    the layer:
    arithmetic: "fp8" or "int8" for matrix products in 8 bits. Any other value means the compute dtype.
    own_format: whether an NVFP4 or MXFP8 weight is multiplied in NVFP4 or MXFP8, if the GPU supports it. No effect
    unless `arithmetic` is an 8-bit format.
    changes: changes, such as LoRAs, that are added to the weight at each use, also in a call. Each is a matrix, or two
    matrices that are multiplied before the addition. A layer with changes ignores `arithmetic` and `own_format`.
    """

    arithmetic: Arithmetic = "bf16"
    own_format = False
    changes: Sequence[tuple[Tensor, Tensor | None]] = ()

    def reset_parameters(self) -> None:
        """Leave the parameters uninitialized. torch calls this method, but all weights are loaded later."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.changed_weight(x), _cast(self.bias, x))

    def changed_weight(self, reference: Tensor) -> Tensor:
        """Return the decoded weight [out, in] plus all `changes`, on the device and in the dtype of `reference`."""
        weight = materialise(self.weight, reference)
        for one, other in self.changes:
            one = one.to(reference.dtype)
            weight = weight + one if other is None else torch.addmm(weight, one, other.to(reference.dtype))
        return weight


class Conv3d(torch.nn.Conv3d):
    """A 3-D convolution that computes in its input's dtype."""

    def reset_parameters(self) -> None:
        """Leave the parameters uninitialized. torch calls this method, but all weights are loaded later."""

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
    """The namespace of this module's layer classes, which have the same constructors as torch's."""

    Linear = Linear
    Conv3d = Conv3d
    LayerNorm = LayerNorm
    RMSNorm = RMSNorm


@contextmanager
def prepared(layer: torch.nn.Module, reference: Tensor) -> Iterator[Layer]:
    """Yield a function that applies a linear layer to inputs with the device and dtype of `reference`.

    The weight is cast, decoded or quantized to 8 bits once, and freed when the context ends. A host's layer does this
    in its own method `prepared(reference)`. In three cases the layer itself is yielded, which prepares its weight in
    every call: it has hooks, its `forward` is replaced, or its class is unknown.
    """
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
    """Yield one function for each of several layers (see `prepared`). All weights are freed together when the context
    ends."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(prepared(layer, reference)) for layer in layers)


class ExactLayer:
    """A callable linear layer with a weight that is not quantized to 8 bits. `parts` are the decoded weight [out, in],
    and the bias [out] or None. Inputs must have the weight's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.parts = weight, bias

    def of(self, weight: Tensor, bias: Tensor | None) -> "ExactLayer":
        """Return a new ExactLayer with this weight [out, in] and this bias [out] or None. The result does not depend on
        this object. `joined` calls this method on an ExactLayer or an EightBitLayer."""
        return ExactLayer(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.parts)

    def gelu(self, x: Tensor) -> Tensor:
        """Return GELU (tanh form) of the layer's result for x [tokens, in]. On NVIDIA GPUs, for 16-bit numbers and a
        layer with a bias, the matrix product's kernel applies GELU in fp32. Rounding to 16 bits then happens only
        once."""
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
    """Return a function that applies `layer` and then GELU (tanh form). Return None in two cases, in which the caller
    must apply GELU in a separate step:
    - `layer` is not an ExactLayer.
    - The next layer `following` takes 8-bit inputs: `activated` then applies GELU and quantizes in one step."""
    return layer.gelu if isinstance(layer, ExactLayer) and input_dtype(following) is None else None


def joined(*layers: Any) -> Layer | None:
    """Return one layer that computes the results of all `layers` as one concatenated tensor. Return None unless all of
    these hold:
    - all layers are ExactLayers, or all are EightBitLayers;
    - all have a bias;
    - their weights, scales and biases are adjacent in memory (see `parameters.keep_together`)."""
    kind = type(layers[0])
    if kind not in (ExactLayer, EightBitLayer) or any(type(layer) is not kind for layer in layers):
        return None
    whole = [_one_of(parts) for parts in zip(*(layer.parts for layer in layers), strict=True)]
    return None if any(part is None for part in whole) else layers[0].of(*whole)


def _one_of(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """Return one tensor over the memory of all `tensors` if they are adjacent in memory, else None."""
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
    """Return a norm's weight [dim], and its bias [dim] or None, on the device of `reference`, in their stored dtype.

    A layer of ComfyUI has its own method `norm_parameters(reference)`. If there is one, return its result, which may
    have the dtype of `reference`.
    """
    own = getattr(layer, "norm_parameters", None)
    if own is not None:
        return own(reference)
    weight, bias = layer.get_parameter("weight"), getattr(layer, "bias", None)
    return weight.to(reference.device), None if bias is None else bias.to(reference.device)
