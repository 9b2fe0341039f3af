"""The model's layers, built on ComfyUI's weight casting: offloading, dynamic VRAM and LoRAs apply to every weight."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import comfy.ops
import torch
from torch import Tensor
from torch.nn import functional as F

from ...loaders import Checkpoint, state_tensors
from ...loaders.chunks import layer_of
from ...model.layers.operations import ExactLayer, Layer, materialise
from ...model.ops.linear_8bit import DTYPES, EightBitLayer, eight_bit_weight, rotates
from ...model.ops.matrix_8bit import EightBit
from ...model.ops.pointwise import encode_8bit
from ...model.ops.rotation import encode_rotated
from ...model.quantized import scaled
from ...model.quantized.own_format import OwnFormatLayer, has_kernel
from ...model.quantized.parameters import LayoutParameter, frozen_parameter
from ...options import Arithmetic


def is_quantized(weight: Tensor | None) -> bool:
    """Whether a weight is a QuantizedTensor of comfy_kitchen."""
    return hasattr(weight, "_qdata")


@contextmanager
def weight_and_bias(
    layer: torch.nn.Module, reference: Tensor, decode: Callable[[Tensor, Tensor], Any] = materialise
) -> Iterator[tuple[Any, Tensor | None]]:
    """Yield (weight, bias) of a layer with LoRAs applied, on the device and in the dtype of `reference`.
    `decode(weight, reference)` decodes the stored weight."""
    comfy.ops.run_every_op()
    weight, bias, offload = comfy.ops.cast_bias_weight(layer, reference, offloadable=True)
    with ExitStack() as held:
        held.callback(comfy.ops.uncast_bias_weight, layer, weight, bias, offload)
        decoded = decode(weight, reference)
        if _in_transfer_buffer(offload):
            decoded, bias = _without_buffer(decoded, weight), None if bias is None else bias.clone()
            held.close()
            del weight, offload
        yield decoded, bias


def _in_transfer_buffer(offload: tuple | None) -> bool:
    """Whether `offload`, from `cast_bias_weight`, belongs to a transfer buffer that the next layer may overwrite."""
    return offload is not None and offload[0] is not None and not isinstance(offload[1], torch.device)


def _without_buffer(decoded: Any, weight: Tensor) -> Any:
    if isinstance(decoded, LayoutParameter):
        return decoded.copied()
    if isinstance(decoded, EightBit) and is_quantized(weight) and decoded.values.data_ptr() == weight._qdata.data_ptr():
        return EightBit(*(part.clone() for part in decoded))
    return decoded.clone() if decoded is weight else decoded


def to_8_bits(weight: Tensor, reference: Tensor, dtype: torch.dtype) -> EightBit:
    """Return a weight [out, in] in 8 bits (float8_e4m3fn or int8) on `reference`'s device, with a scale per row."""
    ours = is_quantized(weight) and hasattr(weight.layout_cls, "recode")  # in 4 bits, or GGML's blocks
    if not ours and rotates(weight.shape[-1], dtype, reference.device):
        return encode_rotated(materialise(weight, reference.new_empty(0, dtype=torch.bfloat16)))
    if not is_quantized(weight):
        return eight_bit_weight(weight, reference.device, dtype, False)
    if ours:
        return weight.layout_cls.recode(weight._qdata, weight._params, dtype)
    params = weight._params
    if hasattr(params, "block_scale") or getattr(params, "convrot", False) or params.scale.dtype.itemsize == 1:
        return encode_8bit(weight.to(torch.float32).dequantize(), dtype=dtype)
    return scaled.recode(weight._qdata, params.scale, dtype)


class Linear(comfy.ops.manual_cast.Linear):
    """A linear layer with an unquantized or a quantized weight.

    arithmetic: the number format of the matrix product; 8-bit formats are ignored with a LoRA.
    own_format: whether 8-bit arithmetic multiplies NVFP4 and MXFP8 weights as they are stored.
    file_parameters: the original parameters, views into the memory-mapped file.
    """

    arithmetic: Arithmetic = "bf16"
    own_format = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.file_parameters: dict[str, torch.nn.Parameter] = {}
        self.upload: PendingUpload | None = None  # set while ComfyUI loads the expert statically

    @property
    def computes_in_8_bits(self) -> bool:
        # A LoRA on a plain weight in dynamic VRAM is ComfyUI's own attribute, which other layers lack.
        patched = self.weight_function or getattr(self, "weight_lowvram_function", None)
        return self.arithmetic in DTYPES and not patched

    @contextmanager
    def prepared(self, reference: Tensor) -> Iterator[Layer]:
        """Decode the weight, and yield the layer as a function of inputs [..., in], which must have `reference`'s
        device and dtype."""
        if self.computes_in_8_bits:
            with weight_and_bias(self, reference, self._to_8_bits) as (weight, bias):
                in_own_format = isinstance(weight, LayoutParameter)
                yield (OwnFormatLayer if in_own_format else EightBitLayer)(weight, bias, reference.dtype)
            return
        with weight_and_bias(self, reference) as (weight, bias):
            yield ExactLayer(weight, bias)

    def _to_8_bits(self, weight: Tensor, reference: Tensor) -> EightBit | LayoutParameter:
        if self.own_format and is_quantized(weight) and has_kernel(weight._layout_cls, weight.device, reference.dtype):
            return LayoutParameter.like(weight)
        return to_8_bits(weight, reference, DTYPES[self.arithmetic])

    def forward(self, x: Tensor) -> Tensor:
        # Overrides the whole method, because the part of core's method that differs here changes in later versions.
        with weight_and_bias(self, x) as (weight, bias):
            return F.linear(x, weight, bias)

    def load_parameter(self, name: str, tensor: Tensor) -> None:
        """Set the parameter `name` ("weight" or "bias") to `tensor` without a copy."""
        parameter = tensor if isinstance(tensor, torch.nn.Parameter) else frozen_parameter(tensor)
        self._parameters[name] = self.file_parameters[name] = parameter

    def convert_weight(self, weight: Tensor, inplace: bool = False, **kwargs) -> Tensor:
        """Return the weight, dequantized if it is quantized. ComfyUI calls this method to merge models."""
        return weight.dequantize() if is_quantized(weight) else weight

    @property
    def weight_scales(self) -> Tensor | None:
        """The scales of a quantized weight, or None. ComfyUI counts them as part of the model's size."""
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
                self._parameters[name] = self._move(name, parameter, fn)
        return self

    def _move(self, name: str, parameter: torch.nn.Parameter, fn) -> torch.nn.Parameter:
        """Return a parameter moved by `fn`, a function for `Module._apply`. Return its view into the weight file
        instead if the view has the target device and dtype, or `self.upload` will copy it later."""
        in_file = self.file_parameters.get(name)
        target = fn(torch.empty(0, device=parameter.device, dtype=parameter.dtype))
        if self.upload is not None and parameter is in_file and self.upload.accept(self, name, target):
            return in_file
        if in_file is not None and (target.device, target.dtype) == (in_file.device, in_file.dtype):
            return in_file
        moved = fn(parameter)
        return parameter if moved is parameter else frozen_parameter(moved)


class PendingUpload:
    """A set of parameters that are copied to the device together, because ComfyUI's copies layer by layer are slow."""

    def __init__(self, checkpoint: Checkpoint, network: torch.nn.Module, dtype: torch.dtype, device: torch.device):
        self.checkpoint, self.dtype, self.device = checkpoint, dtype, device
        self.layer_names = {layer: name for name, layer in network.named_modules() if isinstance(layer, Linear)}
        self.registered: dict[str, tuple[Linear, str]] = {}

    def accept(self, layer: Linear, parameter: str, target: Tensor) -> bool:
        """Register a layer's "weight" or "bias" for the upload to the device. Return False, with nothing registered, if
        the device and dtype that ComfyUI requests (those of `target`) do not fit the upload."""
        name = f"{self.layer_names[layer]}.{parameter}"
        stored = self.checkpoint.plain.get(name) if parameter == "weight" else None
        if (target.device, target.dtype) != (self.device, self.dtype) or (stored and stored.dtype != self.dtype):
            return False
        self.registered[name] = layer, parameter
        return True

    def copy_all(self) -> None:
        """Copy the registered parameters to the device, each layer into a separate block of memory."""
        options = {"names": self.registered, "copy": True, "buffer_key": layer_of}
        sent = state_tensors(self.checkpoint, self.dtype, self.device, **options)
        for name, (layer, parameter) in self.registered.items():
            layer._parameters[parameter] = sent[name]


def can_upload(checkpoint: Checkpoint | None, device: torch.device | None) -> bool:
    """Whether `uploading` can be used: the weights come from a file, and the device is a CUDA device."""
    return checkpoint is not None and device is not None and device.type == "cuda"


@contextmanager
def uploading(checkpoint: Checkpoint, network: torch.nn.Module, dtype: torch.dtype, device: torch.device):
    """Collect the parameters that ComfyUI moves to the CUDA device in this context, and copy them at its end."""
    upload = PendingUpload(checkpoint, network, dtype, device)
    for layer in upload.layer_names:
        layer.upload = upload
    try:
        yield
    finally:
        for layer in upload.layer_names:
            layer.upload = None
    upload.copy_all()


class _NormParameters(torch.nn.Module):
    """A mixin for norm layers whose `norm_parameters` returns copies of weight and bias for the fused kernels."""

    def norm_parameters(self, reference: Tensor) -> tuple[Tensor, Tensor | None]:
        with weight_and_bias(self, reference) as (weight, bias):
            # Copies, because ComfyUI may evict the originals after the context.
            return weight.clone(), None if bias is None else bias.clone()


class LayerNorm(_NormParameters, comfy.ops.manual_cast.LayerNorm):
    """A LayerNorm with ComfyUI's weight casting."""


class RMSNorm(_NormParameters, comfy.ops.manual_cast.RMSNorm):
    """An RMSNorm with ComfyUI's weight casting."""


class HostOperations:
    """The layer classes that `LingBotWorldModel(operations=...)` uses inside ComfyUI."""

    Linear = Linear
    LayerNorm = LayerNorm
    RMSNorm = RMSNorm
    Conv3d = comfy.ops.manual_cast.Conv3d
