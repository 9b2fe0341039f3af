"""The model's layers with ComfyUI's weight casting, so that offloading, dynamic VRAM and LoRAs apply to every weight.

A weight in 4 or 8 bits is a QuantizedTensor of views into the mapped file. It is moved between devices in that form,
and decoded for each use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import comfy.ops
import torch
from torch import Tensor
from torch.nn import functional as F

from ...loaders import Checkpoint, state_tensors
from ...loaders.chunks import layer_of
from ...model.layers.operations import ExactLayer, Layer, materialise
from ...model.ops.linear_8bit import DTYPES, EightBitLayer, eight_bit_weight
from ...model.ops.matrix_8bit import EightBit
from ...model.ops.pointwise import encode_8bit
from ...model.quantized import scaled
from ...model.quantized.parameters import frozen_parameter
from ...options import Arithmetic


def is_quantized(weight: Tensor | None) -> bool:
    """Return whether a weight is a comfy_kitchen QuantizedTensor."""
    return hasattr(weight, "_qdata")


@contextmanager
def weight_and_bias(
    layer: torch.nn.Module, reference: Tensor, decode: Callable[[Tensor, Tensor], Any] = materialise
) -> Iterator[tuple[Any, Tensor | None]]:
    """Yield a layer's weight and bias with LoRAs, on the device and in the dtype of `reference`. `decode(weight,
    reference)` makes the yielded weight: plain values, or 8 bits.

    ComfyUI has only a few transfer buffers. A weight in a transfer buffer is copied and the buffer is freed at once, so
    that several layers can be in use together."""
    comfy.ops.run_every_op()
    weight, bias, offload = comfy.ops.cast_bias_weight(layer, reference, offloadable=True)
    in_transfer_buffer = offload is not None and offload[0] is not None
    decoded = decode(weight, reference)
    if in_transfer_buffer:
        decoded = decoded.clone() if decoded is weight else decoded
        own_bias = None if bias is None else bias.clone()
        comfy.ops.uncast_bias_weight(layer, weight, bias, offload)
        del weight, bias
        yield decoded, own_bias
        return
    try:
        yield decoded, bias
    finally:
        comfy.ops.uncast_bias_weight(layer, weight, bias, offload)


def in_8_bits(weight: Tensor, reference: Tensor, dtype: torch.dtype) -> EightBit:
    """Return a weight on the device of `reference` as 8-bit values of `dtype` with a scale for each row."""
    if not is_quantized(weight):
        return eight_bit_weight(weight, reference.device, dtype)
    if hasattr(weight.layout_cls, "recode"):  # a layout of this pack
        return weight.layout_cls.recode(weight._qdata, weight._params, dtype)
    params = weight._params
    if hasattr(params, "block_scale") or getattr(params, "convrot", False) or params.scale.dtype.itemsize == 1:
        return encode_8bit(weight.to(torch.float32).dequantize(), dtype=dtype)
    return scaled.recode(weight._qdata, params.scale, dtype)


class Linear(comfy.ops.manual_cast.Linear):
    """A linear layer with a plain or quantized weight. `as_loaded` keeps the parameters as views into the mapped file.

    The layer computes in its `arithmetic`; with a LoRA it computes in the compute dtype, so that the LoRA stays
    exact."""

    arithmetic: Arithmetic = "bf16"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.as_loaded: dict[str, torch.nn.Parameter] = {}
        self.upload: PendingUpload | None = None  # set while ComfyUI loads the expert statically

    @property
    def computes_in_8_bits(self) -> bool:
        return self.arithmetic in DTYPES and not self.weight_function

    @contextmanager
    def prepared(self, reference: Tensor) -> Iterator[Layer]:
        """Yield this layer as a function of an input [..., in]. The weight is decoded once for all calls."""
        if self.computes_in_8_bits:
            decode = partial(in_8_bits, dtype=DTYPES[self.arithmetic])
            with weight_and_bias(self, reference, decode) as (weight, bias):
                yield EightBitLayer(weight, bias, reference.dtype)
            return
        with weight_and_bias(self, reference) as (weight, bias):
            yield ExactLayer(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        # Overrides the whole method, because the part of core's method that differs here changes in later versions.
        with weight_and_bias(self, x) as (weight, bias):
            return F.linear(x, weight, bias)

    def load_parameter(self, name: str, tensor: Tensor) -> None:
        """Set the parameter `name`, weight or bias, without a copy."""
        parameter = tensor if isinstance(tensor, torch.nn.Parameter) else frozen_parameter(tensor)
        self._parameters[name] = self.as_loaded[name] = parameter

    def convert_weight(self, weight: Tensor, inplace: bool = False, **kwargs) -> Tensor:
        """Return a weight with plain values; ComfyUI calls this, for instance, to merge models."""
        return weight.dequantize() if is_quantized(weight) else weight

    @property
    def weight_scales(self) -> Tensor | None:
        """The scales of a quantized weight, else None. `state_dict` lists them, because ComfyUI sums the model's size
        from it."""
        return self.weight._params.scale if is_quantized(self.weight) else None

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        # Not detached: detaching a quantized tensor copies its scales.
        destination.update({prefix + name: p for name, p in self._parameters.items() if p is not None})
        if is_quantized(self.weight):
            destination[prefix + "weight_scales"] = self.weight_scales

    def _load_from_state_dict(self, state_dict, prefix, *_):
        # ComfyUI replaces the constructor of a layer without this method. Weights come through `load_parameter`.
        for name in self._parameters:
            if prefix + name in state_dict:
                self.load_parameter(name, state_dict[prefix + name])

    def _apply(self, fn, recurse=True):
        for name, parameter in self._parameters.items():
            if parameter is not None:
                self._parameters[name] = self._moved(name, parameter, fn)
        return self

    def _moved(self, name: str, parameter: torch.nn.Parameter, fn) -> torch.nn.Parameter:
        """Return `fn(parameter)`. A parameter that moves back to the file's device and dtype becomes the view into the
        file again. A parameter that `upload` accepts stays unchanged until the upload is sent."""
        in_file = self.as_loaded.get(name)
        target = fn(torch.empty(0, device=parameter.device, dtype=parameter.dtype))
        if self.upload is not None and parameter is in_file and self.upload.takes(self, name, target):
            return in_file
        if in_file is not None and (target.device, target.dtype) == (in_file.device, in_file.dtype):
            return in_file
        moved = fn(parameter)
        return parameter if moved is parameter else frozen_parameter(moved)


class PendingUpload:
    """A list of an expert's parameters that will be sent to `device` together, at the speed of the bus.

    With `--disable-dynamic-vram` ComfyUI calls `.to(device)` on one layer after another, which would copy page by page
    out of the mapped file. During an upload the layers only register their parameters here."""

    def __init__(self, checkpoint: Checkpoint, network: torch.nn.Module, dtype: torch.dtype, device: torch.device):
        self.checkpoint, self.dtype, self.device = checkpoint, dtype, device
        self.layer_names = {layer: name for name, layer in network.named_modules() if isinstance(layer, Linear)}
        self.waiting: dict[str, tuple[Linear, str]] = {}

    def takes(self, layer: Linear, parameter: str, target: Tensor) -> bool:
        """Register the layer's `parameter` ("weight" or "bias") for the upload; return whether it was accepted.

        `target`, a tensor of any size, has the parameter's future device and dtype. Others than the upload's are not
        accepted. Neither is a weight that the file has in another dtype, because it would briefly be on the device
        twice."""
        name = f"{self.layer_names[layer]}.{parameter}"
        stored = self.checkpoint.plain.get(name) if parameter == "weight" else None
        if (target.device, target.dtype) != (self.device, self.dtype) or (stored and stored.dtype != self.dtype):
            return False
        self.waiting[name] = layer, parameter
        return True

    def send(self) -> None:
        """Copy the registered parameters to the device. Each layer gets memory of its own, so that ComfyUI can free it
        when it unloads the layer. Raises CheckpointError, OSError and errors of the device."""
        options = {"names": self.waiting, "copy": True, "buffer_key": layer_of}
        sent = state_tensors(self.checkpoint, self.dtype, self.device, **options)
        for name, (layer, parameter) in self.waiting.items():
            layer._parameters[parameter] = sent[name]


def can_upload(checkpoint: Checkpoint | None, device: torch.device | None) -> bool:
    """Return whether an upload is possible: from a file, to a CUDA device."""
    return checkpoint is not None and device is not None and device.type == "cuda"


@contextmanager
def uploading(checkpoint: Checkpoint, network: torch.nn.Module, dtype: torch.dtype, device: torch.device):
    """Collect the layers that ComfyUI moves to `device` while the context is open, and send them together at its end.

    After CheckpointError, OSError or an error of the device every weight is still a view into its file."""
    upload = PendingUpload(checkpoint, network, dtype, device)
    for layer in upload.layer_names:
        layer.upload = upload
    try:
        yield
    finally:
        for layer in upload.layer_names:
            layer.upload = None
    upload.send()


class _NormParameters(torch.nn.Module):
    """A mixin for norms with a weight and a bias that the engine uses in its own fused kernels."""

    def norm_parameters(self, reference: Tensor) -> tuple[Tensor, Tensor | None]:
        with weight_and_bias(self, reference) as (weight, bias):
            # Copies, because ComfyUI may evict the originals after the context.
            return weight.clone(), None if bias is None else bias.clone()


class LayerNorm(_NormParameters, comfy.ops.manual_cast.LayerNorm):
    """A layer norm with ComfyUI's weight casting."""


class RMSNorm(_NormParameters, comfy.ops.manual_cast.RMSNorm):
    """A root-mean-square norm with ComfyUI's weight casting."""


class HostOperations:
    """The layer classes for `LingBotWorldModel(operations=...)` inside ComfyUI."""

    Linear = Linear
    LayerNorm = LayerNorm
    RMSNorm = RMSNorm
    Conv3d = comfy.ops.manual_cast.Conv3d
