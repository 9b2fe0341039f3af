"""The layers of the model, and two ways to reach their values without a copy per use.

A host may bring its own namespace with the names of `TorchOperations`. Its layers may keep their weights elsewhere,
in another dtype or quantized, and may apply LoRAs as they hand them out, so the model never touches `layer.weight`: it
asks `borrow` for a linear layer and `values` for a norm."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F


def materialise(weight: Tensor, like: Tensor) -> Tensor:
    """The weight as a plain tensor on `like`'s device and in its dtype; a quantized one is decoded.

    Quantized are loaders' FourBitParameter, which has a `decode`, and comfy_kitchen's QuantizedTensor."""
    if hasattr(weight, "decode"):
        return weight.decode(like.dtype)
    weight = weight.to(device=like.device, dtype=like.dtype)
    return weight.dequantize() if hasattr(weight, "_qdata") else weight


def _optional(tensor: Tensor | None, like: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.to(device=like.device, dtype=like.dtype)


class Linear(torch.nn.Linear):
    """A linear layer in its input's dtype. Its weight may be quantized (see `materialise`)."""

    def reset_parameters(self) -> None:
        """Left empty: every weight is loaded."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, materialise(self.weight, x), _optional(self.bias, x))


class Conv3d(torch.nn.Conv3d):
    """A 3-D convolution in its input's dtype."""

    def reset_parameters(self) -> None:
        """Left empty: every weight is loaded."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, materialise(self.weight, x), _optional(self.bias, x))


class LayerNorm(torch.nn.LayerNorm):
    """A layer norm in its input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, *values(self, x), self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """A root-mean-square norm in its input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, values(self, x)[0], self.eps)


class TorchOperations:
    """Plain torch layers; constructors as in torch, with `device` and `dtype`."""

    Linear = Linear
    Conv3d = Conv3d
    LayerNorm = LayerNorm
    RMSNorm = RMSNorm


@contextmanager
def borrow(layer: torch.nn.Module, like: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """A linear layer as a function whose weight is made ready once, for inputs of `like`'s device and dtype.

    A layer's own `borrow(like)` is used when it has one. A layer that is not ours, or whose call somebody has changed
    (hooks, a replaced `forward`), is called as it stands, so that what they did takes part: each call then
    prepares the weight anew. The weight is freed when the context ends."""
    if _altered(layer):
        yield layer
    elif hasattr(layer, "borrow"):
        with layer.borrow(like) as apply:
            yield apply
    elif type(layer).forward is Linear.forward:
        weight, bias = materialise(layer.weight, like), _optional(layer.bias, like)
        yield lambda x: F.linear(x, weight, bias)
    else:
        yield layer


def values(layer: torch.nn.Module, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """A norm's weight and bias on `like`'s device and in its dtype; a layer's own `borrow_values(like)` comes first."""
    if hasattr(layer, "borrow_values"):
        return layer.borrow_values(like)
    return _optional(layer.weight, like), _optional(getattr(layer, "bias", None), like)


def _altered(layer: torch.nn.Module) -> bool:
    return "forward" in vars(layer) or bool(layer._forward_hooks or layer._forward_pre_hooks)
