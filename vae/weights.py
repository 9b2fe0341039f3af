"""The weights of Wan 2.1's VAE: read from files, checked, and prepared for the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..model.host_memory import upload
from ..model.layers.operations import materialise
from ..weights.files import drop_other_parts, read_tensors, shared_prefix
from ..weights.quantized import QuantizedWeight, find_quantized, quantized_tensors, shape_differences, shapes_of
from ..weights.tensors import TensorEntry, refuse_not_finite
from . import diffusers_names
from .network import LATENT_CHANNELS

WIDTH_KEY = "decoder.head.0.gamma"
DECODER = ("decoder.", "conv2.")
"""The name prefixes of the decoder's weights."""
MULTIPLES = (1, 2, 4, 4)
HALVES_TIME = (False, True, True)  # which of the encoder's three halvings halve time as well
# The mean and standard deviation of each of the latent's channels.
MEAN = (
    *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
    *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
)
STD = (
    *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
    *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
)

FOLDING = torch.tensor([[[1.0, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]])
"""The weights (0 or 1) that sum the rows of a 3x3 kernel, applied after 2x nearest upsampling, to the rows of a 2x2
kernel. Indices: the output row's parity, the 2x2 kernel's row, the 3x3 kernel's row. The same weights sum columns."""


@dataclass
class VAE:
    """A Wan 2.1 VAE: its prepared weights by official name, and whether it works in tiles."""

    weights: dict[str, Tensor]
    use_tiling: bool = False

    @property
    def width(self) -> int:
        return vae_width(self.weights)

    @property
    def device(self) -> torch.device:
        return self.weights[WIDTH_KEY].device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights[WIDTH_KEY].dtype

    @cached_property
    def quarters(self) -> dict[str, Tensor]:
        """The 2x2 kernels of the decoder's upsampling convolutions, by weight name. The function `quarters` of this
        module computes them from 3x3 kernels."""
        names = [name for name in self.weights if name.startswith("decoder.") and name.endswith("resample.1.weight")]
        return {name: quarters(self.weights[name]) for name in names}

    def decoding_in_half(self, dtype: torch.dtype = torch.float16) -> VAE:
        """Return a copy with only the decoder's weights, converted to `dtype` (fp16 or bf16)."""
        weights = {name: tensor.to(dtype) for name, tensor in self.weights.items() if name.startswith(DECODER)}
        return VAE(weights, self.use_tiling)

    def normalized(self, latent: Tensor) -> Tensor:
        """Return (latent - mean) / std of an encoded latent frame [1, 16, h, w], in float32, for the transformer."""
        mean, std = self._statistics()
        return (latent.float() - mean) / std

    def denormalized(self, latent: Tensor) -> Tensor:
        """Return latent * std + mean, the decoder's input, for a normalized latent frame [1, 16, h, w]. std and mean
        are per channel. The result has the VAE's device and dtype."""
        mean, std = self._statistics()
        latent = latent.to(self.device, torch.float32) * std + mean
        return latent.to(self.dtype, memory_format=torch.channels_last)

    def _statistics(self) -> Tensor:
        return upload(torch.tensor([MEAN, STD]), self.device)[..., None, None]

    def enable_tiling(self) -> None:
        """Process frames with a side of more than 256 pixels in overlapping tiles from now on."""
        self.use_tiling = True


def read_vae(path: str | Path) -> dict[str, Tensor]:
    """Return the VAE's tensors in a file or diffusers folder, by official name. Raise CheckpointError if the tensors
    are not a Wan 2.1 VAE's."""
    entries = drop_other_parts(read_tensors(path), ("first_stage_model.", "vae."))
    prefix = shared_prefix(entries, (WIDTH_KEY, diffusers_names.MARK))
    entries = {key.removeprefix(prefix): entry for key, entry in entries.items()}
    diffusers = diffusers_names.MARK in entries
    return decode_weights(str(path), entries, diffusers_names.official_name if diffusers else str, check_shapes)


def decode_weights(
    source: str,
    entries: Mapping[str, TensorEntry],
    name_of: Callable[[str], str | None],
    check: Callable[[str, Mapping[str, tuple[int, ...]]], None],
) -> dict[str, Tensor]:
    """Return a file's tensors by new names, with quantized weights decoded.

    source: the file's name for messages.
    name_of: returns a tensor's new name, or None to leave it out.
    check: called with `source` and the shapes by new name; may raise.
    """
    tensors, quantized = find_quantized(source, entries, name_of)
    shapes = shapes_of(tensors, quantized)
    check(source, shapes)
    return {name: _values(name, tensors, quantized) for name in shapes}


def is_vae(keys: Iterable[str]) -> bool:
    """Return whether `keys` are the tensor names of a VAE, official or of diffusers."""
    return any(key.endswith((WIDTH_KEY, diffusers_names.MARK)) for key in keys)


def _values(name: str, tensors: Mapping[str, TensorEntry], quantized: Mapping[str, QuantizedWeight]) -> Tensor:
    if name not in quantized:
        return tensors[name].view()
    parts = {entry.name: entry.view() for entry in quantized[name].entries}
    made = quantized_tensors({name: quantized[name]}, parts, None, torch.device("cpu"))
    return materialise(made[name], torch.empty(0))


def prepare(weights: Mapping[str, Tensor], device: torch.device | str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the VAE's weights on `device`, in `dtype`, in the network's layout. Kernels are channels last. The kernel
    of a temporal convolution is [out, t * in, h, w]: its t frames are stacked as input channels, the oldest first."""
    return {name: _prepare(name, tensor.to(device, dtype)) for name, tensor in weights.items()}


def _prepare(name: str, tensor: Tensor) -> Tensor:
    if name.endswith("gamma"):
        return tensor.flatten()
    if tensor.ndim == 5:
        tensor = tensor.transpose(1, 2).flatten(1, 2)
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def quarters(weight: Tensor) -> Tensor:
    """Return the 2x2 kernels that replace 2x nearest upsampling and a 3x3 convolution. There is one kernel for each
    parity of an output pixel's row and column. `weight` [out, C, 3, 3] is the convolution's.

    The result is a matrix [2 * 2 * out, 2 * 2 * C]. A row is (row parity, column parity, output channel). A column is
    (kernel row, kernel column, input channel).
    """
    share = FOLDING.to(weight.device)
    sums = torch.einsum("pak,qbl,nckl->pqnabc", share, share, weight.float())
    return sums.flatten(0, 2).flatten(1).to(weight.dtype)


def vae_width(weights: Mapping[str, Tensor]) -> int:
    """Return the VAE's base width, the number of channels at full resolution."""
    return weights[WIDTH_KEY].numel()


def check_values(source: str, weights: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError, naming the file `source`, if a weight has NaN or infinity."""
    finite = torch.stack([tensor.isfinite().all() for tensor in weights.values()]).tolist()
    refuse_not_finite(source, [name for name, fine in zip(weights, finite, strict=True) if not fine])


def check_shapes(source: str, found: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError, which names the file `source`, if the tensor shapes `found` are not those of a Wan 2.1
    VAE. Any base width of the VAE is accepted."""
    if WIDTH_KEY not in found:
        raise CheckpointError(f"{source}: no {WIDTH_KEY}, so not a Wan VAE; use Wan2.1_VAE.pth of the package")
    if differences := shape_differences(found, vae_shapes(math.prod(found[WIDTH_KEY]))):
        raise CheckpointError(f"{source}: not a Wan 2.1 VAE: {differences}; use Wan2.1_VAE.pth of the package")


def vae_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Return a Wan 2.1 VAE's tensor shapes by official name. `width` is the base width."""
    widths = [width * multiple for multiple in MULTIPLES]
    narrow, wide = widths[0], widths[-1]
    return {
        **_conv("encoder.conv1", 3, narrow),
        **_stages("encoder.downsamples", [narrow, *widths], 2, HALVES_TIME, up=False),
        **_middle("encoder", wide),
        **_norm_conv("encoder.head", wide, 2 * LATENT_CHANNELS),
        **_conv("conv1", 2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, kernel=(1, 1, 1)),
        **_conv("conv2", LATENT_CHANNELS, LATENT_CHANNELS, kernel=(1, 1, 1)),
        **_conv("decoder.conv1", LATENT_CHANNELS, wide),
        **_middle("decoder", wide),
        **_stages("decoder.upsamples", [wide, *reversed(widths)], 3, HALVES_TIME[::-1], up=True),
        **_norm_conv("decoder.head", narrow, 3),
    }


def _stages(
    name: str, widths: Sequence[int], blocks: int, changes_time: Sequence[bool], *, up: bool
) -> dict[str, tuple]:
    """Return the tensor shapes of an encoder's stages, or a decoder's if `up`. `widths`: channels of the input and each
    stage. `changes_time`: which resamplings change the frame rate."""
    shapes: dict[str, tuple[int, ...]] = {}
    index, (channels, *outputs) = 0, widths
    for stage, out in enumerate(outputs):
        for _ in range(blocks):
            shapes |= _residual(f"{name}.{index}", channels, out)
            channels, index = out, index + 1
        if stage < len(changes_time):
            resampled, in_time = (channels // 2, 2 * channels) if up else (channels, channels)
            shapes |= _conv(f"{name}.{index}.resample.1", channels, resampled, kernel=(3, 3))
            if changes_time[stage]:
                shapes |= _conv(f"{name}.{index}.time_conv", channels, in_time, kernel=(3, 1, 1))
            channels, index = resampled, index + 1
    return shapes


def _middle(side: str, channels: int) -> dict[str, tuple[int, ...]]:
    return {
        **_residual(f"{side}.middle.0", channels, channels),
        f"{side}.middle.1.norm.gamma": (channels, 1, 1),
        **_conv(f"{side}.middle.1.to_qkv", channels, 3 * channels, kernel=(1, 1)),
        **_conv(f"{side}.middle.1.proj", channels, channels, kernel=(1, 1)),
        **_residual(f"{side}.middle.2", channels, channels),
    }


def _residual(name: str, channels: int, out: int) -> dict[str, tuple[int, ...]]:
    shapes = {
        f"{name}.residual.0.gamma": (channels, 1, 1, 1),
        **_conv(f"{name}.residual.2", channels, out),
        f"{name}.residual.3.gamma": (out, 1, 1, 1),
        **_conv(f"{name}.residual.6", out, out),
    }
    return shapes if channels == out else shapes | _conv(f"{name}.shortcut", channels, out, kernel=(1, 1, 1))


def _norm_conv(name: str, channels: int, out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.0.gamma": (channels, 1, 1, 1), **_conv(f"{name}.2", channels, out)}


def _conv(name: str, channels: int, out: int, kernel: tuple[int, ...] = (3, 3, 3)) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, channels, *kernel), f"{name}.bias": (out,)}
