"""Convolution kernels for the VAE decoder: their accuracy test, and the choice of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.choice.card import card_of
from ..model.choice.rates import DECODING
from ..model.choice.table import KITCHEN, OURS, TRITON, candidates
from ..model.choice.trials import KERNEL_TESTS, KernelTest, Size, chosen, register_kernel, skips_timing
from ..model.ops.implementation import on_its_gpu
from .network import EPSILON, Decoder

SLOT_COLUMNS = 4
"""The number of int32 values per layer in the slot table: three slot numbers and one value of padding."""
MAX_ERROR = 2.8e-3
"""A convolution kernel passes the accuracy test if its relative RMS error is below this limit (-51 dB)."""
GPU_TEST_SIZE, CPU_TEST_SIZE = Size(rows=58, dim=384, out=384), Size(rows=24, dim=32, out=96)
"""The sizes in the convolution kernels' accuracy test, on a GPU and on the CPU. `rows` is the height, `dim` the input
channels, `out` the output channels."""


class KitchenDecoder(Decoder):
    """A `Decoder` for an fp16 VAE that computes temporal convolutions with comfy-kitchen."""

    def _causal_conv(self, name: str, x: Tensor) -> Tensor:
        frames = [*(self.past.get(name) or 2 * [torch.zeros_like(x)]), x]
        self.past[name] = frames[1:]
        return convolve_by_kitchen(frames, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])


def convolution_kernel(device: torch.device) -> str | None:
    """Return the name of the convolution kernel to use on a GPU, or None if no kernel suits. The first call may test
    the kernels."""
    card = card_of(device)
    if skips_timing("convolution", card):
        return next((each.name for each in candidates("convolution", card)), None)
    try:
        return chosen("convolution", device, DECODING)
    except torch.OutOfMemoryError:
        return "torch"


def convolve_by_kitchen(frames: Sequence[Tensor], weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve three frames [1, C, H, W] with comfy-kitchen to one frame [1, out, H, W]. `weight` is [out, 3 * C, h,
    w], with the oldest frame's channels first."""
    from comfy_kitchen import fp16_conv3d

    (channels, height, width), pad = frames[0].shape[1:], weight.shape[-1] // 2
    window = frames[0].new_zeros(1, 3, height + 2 * pad, width + 2 * pad, channels)
    for room, frame in zip(window[0], frames, strict=True):
        room[pad : pad + height, pad : pad + width] = frame[0].permute(1, 2, 0)
    kernel = weight.unflatten(1, (3, -1)).transpose(1, 2)
    return fp16_conv3d(window.permute(0, 4, 1, 2, 3), kernel, bias)[:, :, 0]


def random_convolution(device: torch.device, size: Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return random fp16 frames [3, C, H, W], a weight [out, 3 * C, 3, 3] and a bias. Each frame is followed in memory
    by a padding row and column, which H and W exclude. A default `size.rows` selects GPU_TEST_SIZE or, on a CPU,
    CPU_TEST_SIZE."""
    generator = torch.Generator(device).manual_seed(0)
    if size.rows == Size().rows:
        size = CPU_TEST_SIZE if device.type == "cpu" else GPU_TEST_SIZE
    height, _, channels, out, _ = size
    shapes = (3, channels, height, height * 5 // 4 + 4), (out, 3 * channels, 3, 3), (out,)
    frames, weight, bias = (torch.randn(shape, device=device, generator=generator).half() for shape in shapes)
    pool = F.pad(frames, (0, 1, 0, 1)).contiguous(memory_format=torch.channels_last)
    return pool[:, :, :-1, :-1], weight.contiguous(memory_format=torch.channels_last), bias


def exact_convolution(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve three frames [3, C, H, W] in fp32, as a reference. Return [1, out, H, W]. `weight` is [out, 3 * C, 3,
    3], with the oldest frame's channels first."""
    return F.conv2d(frames.flatten(0, 1)[None].float(), weight.float(), bias.float(), padding=1)


@register_kernel("convolution", OURS)
def convolve_by_hopper(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve three frames [3, C, H, W] with the Hopper kernel. Return [1, out, H, W]. In memory, a row and a column
    of zeros must follow each frame. `weight` is [out, 3 * C, 3, 3], channels last."""
    from ..model.kernels.hopper import convolution as convolution_hopper

    rows, slots, size = _pooled(frames)
    return unpad(convolution_hopper.convolve(rows, slots, matrix(weight), bias, size), size)


@register_kernel("convolution", TRITON)
def _by_triton(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from ..model.kernels import convolution

    rows, slots, size = _pooled(frames)
    convolution.store(rows[len(rows) // 3 * 2 :], None, EPSILON, rows, slots, size)
    return unpad(convolution.convolve(rows, slots, matrix(weight), bias, size, 3), size)


@register_kernel("convolution", KITCHEN)
@on_its_gpu
def _by_kitchen(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return convolve_by_kitchen(frames.split(1), weight, bias)


@register_kernel("convolution", "torch")
def _by_torch(frames: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(torch.cat(frames.split(1), 1), weight, bias, padding=1)


KERNEL_TESTS["convolution"] = KernelTest(random_convolution, exact_convolution, MAX_ERROR)


def _pooled(frames: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Return three arguments of a convolution kernel: the memory of `frames` as [pixels, C], the frames' int32 indices
    in it, and (height, width). Only the memory includes the row and column of zeros after each frame."""
    count, channels, height, width = frames.shape
    rows = frames.as_strided((count * (height + 1) * (width + 1), channels), (channels, 1))
    return rows, torch.arange(SLOT_COLUMNS, dtype=torch.int32, device=frames.device), (height, width)


def matrix(weight: Tensor) -> Tensor:
    """Return a channels-last convolution weight [out, in, h, w] as a view [out, h * w * in]."""
    return weight.permute(0, 2, 3, 1).flatten(1)


def unpad(rows: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a view [1, C, H, W] of a feature map's rows [(H + 1) * (W + 1), C] without the padding of zeros."""
    height, width = size
    return rows.view(height + 1, width + 1, -1)[:height, :width].permute(2, 0, 1)[None]
