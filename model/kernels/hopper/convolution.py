"""The launch of convolution.cu, for 3x3 convolutions over three frames on Hopper GPUs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from . import launch as hopper
from .nvrtc import CudaKernel, Launch, load

# Constants of convolution.cu:
COLUMNS, PIXELS = 96, 384  # output channels and pixels of a tile
CHANNELS = 32  # input channels of a step
STAGES, LINE = 5, 400  # shared-memory buffers, and the pixels in each
THREADS, ROW = 512, 2 * CHANNELS
SHARED = 1024 + STAGES * (ROW * (LINE + 3 * COLUMNS) + 16)
MIN_ROUNDS = 0.9
"""The minimum number of tiles per multiprocessor (SM) for which this kernel is used."""


def suits(x: Tensor, weight: Tensor, size: tuple[int, int], side: int) -> bool:
    """Return whether this kernel supports a convolution and has enough tiles to occupy the GPU.

    x: the input, [rows, channels].
    weight: one row for each output channel.
    size: a frame's height and width.
    side: the convolution's kernel size.
    """
    if side != 3 or x.dtype != torch.float16 or x.shape[1] % CHANNELS or len(weight) % COLUMNS:
        return False
    tiles = -(-(size[0] + 1) * (size[1] + 1) // PIXELS) * len(weight) // COLUMNS
    return tiles >= MIN_ROUNDS * torch.cuda.get_device_properties(x.device).multi_processor_count


def convolve(
    x: Tensor, slots: Tensor, weight: Tensor, bias: Tensor, size: tuple[int, int], added: Tensor | None = None
) -> Tensor:
    """Convolve three frames of a pool with 3x3 windows. Return a feature map [(height + 1) * (width + 1), out]. A pool
    is a sequence of frames. Each has (height + 1) * (width + 1) rows, because a row and a column of zeros follow its
    pixels.

    x: the pool, [rows, channels].
    slots: the frames' indices in the pool, the oldest first.
    weight: [out, 9 * 3 * channels], in the order (window pixel, frame, channel).
    size: a frame's height and width without the zeros.
    added: a feature map to add to the result.
    """
    (height, width), channels, out_channels = size, x.shape[1], len(weight)
    # `near`: bytes of a neighbour's weights for an output channel
    out, near = x.new_empty((height + 1) * (width + 1), out_channels), 2 * 3 * channels
    blocks = torch.cuda.get_device_properties(x.device).multi_processor_count
    with torch.cuda.device_of(x):
        pixels = hopper.tensor_map(x, (ROW, LINE // 2), hopper.SWIZZLE_64)
        weights = hopper.tensor_map(
            weight, (ROW, COLUMNS, 3), hopper.SWIZZLE_64, (near, out_channels, 9), (9 * near, near)
        )
        added = None if added is None else added.contiguous()
        sizes = height, width + 1, channels, out_channels
        _kernel(x.device)(Launch((blocks, 1), THREADS, SHARED), pixels, weights, out, bias, added, slots, *sizes)
    return out


def source() -> str:
    """Return the CUDA source of the convolution kernel."""
    products = hopper.product_source("add_products", COLUMNS, ("f16", 2))
    return hopper.source("convolution.cu", PRODUCTS=f"constexpr int COLUMNS = {COLUMNS};\n{products}")


@lru_cache
def _kernel(device: torch.device) -> CudaKernel:
    with torch.cuda.device(device):
        return CudaKernel(load(source(), hopper.ARCHITECTURE), "convolve", SHARED)
