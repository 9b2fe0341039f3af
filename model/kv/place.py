"""The location and format of a KeyValueCache's keys and values, and their size in bytes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...options import CHUNK, KeyValueMode
from ..attention.fp8 import FP8
from ..attention.fp8_cudnn import padding
from ..config import ModelConfig
from .storage import HostStorage, Shapes


class KeyValuePlace(NamedTuple):
    """The location and format of a KeyValueCache's tensors.

    `device_blocks`: the number of blocks that stay on the device despite `on_host`."""

    eight_bit: bool = False
    on_host: bool = False
    fp8: bool = False
    device_blocks: int = 0

    @property
    def in_place(self) -> bool:
        """True if attention reads the stored tensors directly, because all are on the device."""
        return not self.eight_bit and not self.on_host

    def on_device(self, layers: int) -> list[int]:
        """Return the blocks, of `layers`, with keys and values on the device.

        They are spread evenly, because the other blocks' tensors are copied while these compute."""
        there = min(self.device_blocks, layers) if self.on_host else layers
        return [block for block in range(layers) if block * there // layers < (block + 1) * there // layers]


ON_DEVICE = KeyValuePlace()


def stored_shapes(
    config: ModelConfig, frames: tuple[int, int], frame_tokens: int, dtype: torch.dtype, place: KeyValuePlace
) -> list[tuple[tuple[int, int], torch.dtype]]:
    """Return the shape and dtype of each tensor that a block's `fetch` returns.

    They are the keys and values of the window: in fp8 followed by tokens of zeros, in int8 with scales and without the
    current chunk's frames. `frames`: latent frames of the window and of a chunk."""
    tokens = frames[0] * frame_tokens
    if place.fp8:
        return [((tokens + padding(tokens), config.dim), FP8)] * 2
    if place.eight_bit:
        tokens -= frames[1] * frame_tokens
        return [((tokens, config.dim), torch.int8), ((tokens, config.num_heads), torch.float32)] * 2
    return [((tokens, config.dim), dtype)] * 2


class KeyValueBytes(NamedTuple):
    """The bytes of a KeyValueCache: on the device, on the device during a forward, and in pinned host memory."""

    device: int
    working: int
    host: int


def key_value_bytes(
    config: ModelConfig, window: int, frame_tokens: int, dtype: torch.dtype, place: KeyValuePlace, chunk: int = CHUNK
) -> KeyValueBytes:
    """Return the bytes of a KeyValueCache over `window` latent frames of `frame_tokens` tokens each."""
    shapes = stored_shapes(config, (window, chunk), frame_tokens, dtype, place)
    block = _nbytes(shapes)
    working = 2 * window * frame_tokens * config.dim * dtype.itemsize if place.eight_bit and not place.fp8 else 0
    there = len(place.on_device(config.num_layers))
    away = config.num_layers - there
    stored = _nbytes(shapes, (window - chunk) * frame_tokens)
    return KeyValueBytes((there + min(away, 1) * HostStorage.BUFFERS) * block, working, away * stored)


def _nbytes(shapes: Shapes, most: int | None = None) -> int:
    """Return the bytes of tensors, counting at most `most` rows of each."""
    return sum(
        (rows if most is None else min(rows, most)) * columns * dtype.itemsize for (rows, columns), dtype in shapes
    )


_HOST = KeyValuePlace(on_host=True)
_8BIT, _8BIT_ON_HOST = KeyValuePlace(eight_bit=True), KeyValuePlace(eight_bit=True, on_host=True)
_PLACES: dict[KeyValueMode, tuple[KeyValuePlace, ...]] = {
    "auto": (ON_DEVICE, _8BIT, _HOST, _8BIT_ON_HOST),
    "gpu": (ON_DEVICE,),
    "8bit": (_8BIT, _8BIT_ON_HOST),
    "host": (_HOST,),
}


def key_value_places(mode: KeyValueMode, fp8: bool) -> list[KeyValuePlace]:
    """Return the possible places of keys and values in a mode, the best first, each in fp8 if `fp8`."""
    return [place._replace(fp8=fp8, eight_bit=place.eight_bit and not fp8) for place in _PLACES[mode]]


HOST_SHARE = 0.7
"""The share of the free host memory that pinned keys and values may use."""
