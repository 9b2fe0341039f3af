"""The location and format of a KeyValueCache's tensors, and their size in bytes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...options import CHUNK, KeyValueMode
from ..attention.fp8 import FP8
from ..attention.fp8_cudnn import padding
from ..config import ModelConfig
from ..kernels.hopper.attention import V_BLOCK
from .storage import HostStorage, Shapes


class KeyValuePlace(NamedTuple):
    """The location and number format of a KeyValueCache's tensors, by default on the device in the model's dtype.

    int8: whether the format is int8 with scales.
    on_host: whether the tensors are in pinned host memory.
    fp8: whether the format is float8_e4m3fn, for 8-bit attention.
    device_blocks: with `on_host`, the number of blocks that stay on the device.
    """

    int8: bool = False
    on_host: bool = False
    fp8: bool = False
    device_blocks: int = 0

    @property
    def is_read_directly(self) -> bool:
        """Whether attention reads the stored tensors directly, not copies."""
        return not self.int8 and not self.on_host

    def on_device(self, layers: int) -> list[int]:
        """Return the indices of the blocks that keep their tensors on the device, evenly spaced among the model's
        blocks. `layers` is the number of blocks."""
        there = min(self.device_blocks, layers) if self.on_host else layers
        return [block for block in range(layers) if block * there // layers < (block + 1) * there // layers]


ON_DEVICE = KeyValuePlace()


def stored_shapes(
    config: ModelConfig, frames: tuple[int, int], frame_tokens: int, dtype: torch.dtype, place: KeyValuePlace
) -> list[tuple[tuple[int, int], torch.dtype]]:
    """Return the shapes (tokens, columns) and dtypes of a block's stored keys and values. In int8, each is followed by
    its scales, and the current chunk's tokens are not stored.

    frames: (latent frames in the window, latent frames in a chunk).
    """
    tokens = frames[0] * frame_tokens
    if place.fp8:
        # padding for values that are stored transposed, or for a tile of cuDNN's kernel
        return [((tokens + (padding(tokens) or -tokens % V_BLOCK), config.dim), FP8)] * 2
    if place.int8:
        tokens -= frames[1] * frame_tokens  # without the current chunk
        return [((tokens, config.dim), torch.int8), ((tokens, config.num_heads), torch.float32)] * 2
    return [((tokens, config.dim), dtype)] * 2


class KeyValueBytes(NamedTuple):
    """The size of a KeyValueCache in bytes.

    device: stored tensors and copy buffers on the device.
    working: one block's decoded keys and values, for int8 only.
    host: stored tensors in pinned host memory.
    """

    device: int
    working: int
    host: int


def key_value_bytes(
    config: ModelConfig, window: int, frame_tokens: int, dtype: torch.dtype, place: KeyValuePlace, chunk: int = CHUNK
) -> KeyValueBytes:
    """Return the size of a KeyValueCache for `window` latent frames of `frame_tokens` tokens each, at `place`. Host
    memory excludes the current `chunk`."""
    shapes = stored_shapes(config, (window, chunk), frame_tokens, dtype, place)
    block = _nbytes(shapes)
    working = 2 * window * frame_tokens * config.dim * dtype.itemsize if place.int8 and not place.fp8 else 0
    there = len(place.on_device(config.num_layers))
    away = config.num_layers - there
    stored = _nbytes(shapes, (window - chunk) * frame_tokens)
    return KeyValueBytes((there + min(away, 1) * HostStorage.BUFFERS) * block, working, away * stored)


def _nbytes(shapes: Shapes, most: int | None = None) -> int:
    return sum(
        (rows if most is None else min(rows, most)) * columns * dtype.itemsize for (rows, columns), dtype in shapes
    )


_HOST = KeyValuePlace(on_host=True)
_8BIT, _8BIT_ON_HOST = KeyValuePlace(int8=True), KeyValuePlace(int8=True, on_host=True)
_PLACES: dict[KeyValueMode, tuple[KeyValuePlace, ...]] = {
    "auto": (ON_DEVICE, _8BIT, _HOST, _8BIT_ON_HOST),
    "gpu": (ON_DEVICE,),
    "8bit": (_8BIT, _8BIT_ON_HOST),
    "host": (_HOST,),
}


def key_value_places(mode: KeyValueMode, fp8: bool) -> list[KeyValuePlace]:
    """Return the places that the user's setting `mode` allows, the preferred one first. With `fp8`, all are in
    float8_e4m3fn."""
    return [place._replace(fp8=fp8, int8=place.int8 and not fp8) for place in _PLACES[mode]]


HOST_SHARE = 0.7
"""Keys and values may use at most this fraction of the free host memory."""
