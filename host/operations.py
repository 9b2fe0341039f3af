"""The model's layers on ComfyUI's weight casting: offloading, dynamic VRAM and LoRA reach every weight through it.

A 4-bit weight is a QuantizedTensor on views of the mapped file. It is moved as it is and decoded where it is used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import comfy.ops
import torch
from torch import Tensor
from torch.nn import functional as F

from ..loaders.four_bit import frozen_parameter
from ..model.operations import materialise


def is_quantized(weight: Tensor | None) -> bool:
    """Whether a weight is a comfy_kitchen QuantizedTensor."""
    return hasattr(weight, "_qdata")


@contextmanager
def leased(layer: torch.nn.Module, like: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """A layer's weight and bias on `like`'s device and in its dtype, decoded and patched, while the context lasts.

    What came through one of ComfyUI's few transfer buffers is copied out of it at once, so that several layers can be
    leased together."""
    comfy.ops.run_every_op()
    weight, bias, lease = comfy.ops.cast_bias_weight(layer, like, offloadable=True)
    streamed = lease is not None and lease[0] is not None
    ready = materialise(weight, like)
    if streamed:
        ready = ready.clone() if ready is weight else ready
        own_bias = None if bias is None else bias.clone()
        comfy.ops.uncast_bias_weight(layer, weight, bias, lease)
        del weight, bias
        yield ready, own_bias
        return
    try:
        yield ready, bias
    finally:
        comfy.ops.uncast_bias_weight(layer, weight, bias, lease)


class Linear(comfy.ops.manual_cast.Linear):
    """A linear layer whose weight may be 4-bit. `home` holds its parameters as they were loaded: views of the file."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.home: dict[str, torch.nn.Parameter] = {}
        self.upload = None  # the Upload, while weights are sent together (see uploads.py)

    @contextmanager
    def borrow(self, like: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
        """This layer as a function, its weight made ready once (see the engine's `operations.borrow`)."""
        with leased(self, like) as (weight, bias):
            yield lambda x: F.linear(x, weight, bias)

    def forward_comfy_cast_weights(self, x: Tensor) -> Tensor:
        with leased(self, x) as (weight, bias):
            return F.linear(x, weight, bias)

    def load_parameter(self, name: str, tensor: Tensor) -> None:
        """Take `weight` or `bias` without copying a byte."""
        ready = isinstance(tensor, torch.nn.Parameter)
        self._parameters[name] = self.home[name] = tensor if ready else frozen_parameter(tensor)

    def convert_weight(self, weight: Tensor, inplace: bool = False, **kwargs) -> Tensor:
        """ComfyUI asks for this where it needs plain values, as in model merging."""
        return weight.dequantize() if is_quantized(weight) else weight

    @property
    def weight_scales(self) -> Tensor | None:
        """The scales of a 4-bit weight, for the size that ComfyUI reckons from `state_dict`."""
        return self.weight._params.scale if is_quantized(self.weight) else None

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        # Not detached: detaching a quantized tensor copies its scales.
        destination.update({prefix + name: p for name, p in self._parameters.items() if p is not None})
        if is_quantized(self.weight):
            destination[prefix + "weight_scales"] = self.weight_scales

    def _load_from_state_dict(self, state_dict, prefix, *_):
        # Defined so that ComfyUI does not replace the constructor; weights come through `load_parameter`.
        for name in self._parameters:
            if prefix + name in state_dict:
                self.load_parameter(name, state_dict[prefix + name])

    def _apply(self, fn, recurse=True):
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = self._moved(name, parameter, fn)
        return self

    def _moved(self, name: str, parameter: torch.nn.Parameter, fn) -> torch.nn.Parameter:
        """`fn(parameter)`; on the way back to where it came from, the view of the file instead of a copy. What is to
        be sent together with others stays for now."""
        home = self.home.get(name)
        probe = fn(torch.empty(0, device=parameter.device, dtype=parameter.dtype))
        if self.upload is not None and parameter is home and self.upload.takes(self, name, probe):
            return home
        if home is not None and (probe.device, probe.dtype) == (home.device, home.dtype):
            return home
        moved = fn(parameter)
        return parameter if moved is parameter else frozen_parameter(moved)


class _Values:
    """Norms hand out their weight and bias, for the engine to fuse them into its own passes."""

    def borrow_values(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        with leased(self, like) as (weight, bias):
            # Copies: what is leased may be evicted once the lease has ended.
            return weight.clone(), None if bias is None else bias.clone()


class LayerNorm(_Values, comfy.ops.manual_cast.LayerNorm):
    """A layer norm on ComfyUI's casting."""


class RMSNorm(_Values, comfy.ops.manual_cast.RMSNorm):
    """A root-mean-square norm on ComfyUI's casting."""


class HostOperations:
    """Layers for `LingBotWorldModel(operations=...)` inside ComfyUI."""

    Linear = Linear
    LayerNorm = LayerNorm
    RMSNorm = RMSNorm
    Conv3d = comfy.ops.manual_cast.Conv3d
