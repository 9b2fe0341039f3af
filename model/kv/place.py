"""Where the keys and values of a KeyValueCache lie, in which form, and how many bytes that takes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...options import CHUNK, KeyValueMode
from ..attention.fp8 import FP8
from ..attention.fp8_cudnn import padding
from ..config import ModelConfig
from .storage import HostStorage, Shapes


class KeyValuePlace(NamedTuple):
    """Where a KeyValueCache's tensors lie, and in which form. `device_blocks`: with `on_host`, so many blocks have
    theirs on the device all the same."""

    eight_bit: bool = False
    on_host: bool = False
    fp8: bool = False
    device_blocks: int = 0

    @property
    def in_place(self) -> bool:
        """Whether what attention sees are the stored tensors themselves, all of them on the device."""
        return not self.eight_bit and not self.on_host

    def on_device(self, layers: int) -> list[int]:
        """The blocks, of `layers`, whose keys and values lie on the device. They are spread evenly: the bus brings the
        others' while these compute."""
        there = min(self.device_blocks, layers) if self.on_host else layers
        return [block for block in range(layers) if block * there // layers < (block + 1) * there // layers]


ON_DEVICE = KeyValuePlace()


def stored_shapes(
    config: ModelConfig, frames: tuple[int, int], frame_tokens: int, dtype: torch.dtype, place: KeyValuePlace
) -> list[tuple[tuple[int, int], torch.dtype]]:
    """Shape and dtype of what a block's `fetch` gives: keys and values of the window, in fp8 with tokens of zeros
    behind them; in int8 with scales, and without the running chunk's frames. `frames`: of the window and of a chunk."""
    tokens = frames[0] * frame_tokens
    if place.fp8:
        return [((tokens + padding(tokens), config.dim), FP8)] * 2
    if place.eight_bit:
        tokens -= frames[1] * frame_tokens
        return [((tokens, config.dim), torch.int8), ((tokens, config.num_heads), torch.float32)] * 2
    return [((tokens, config.dim), dtype)] * 2


class KeyValueBytes(NamedTuple):
    """Bytes of a KeyValueCache: on the device, there while a forward runs, and in pinned host memory."""

    device: int
    working: int
    host: int


def key_value_bytes(
    config: ModelConfig, window: int, frame_tokens: int, dtype: torch.dtype, place: KeyValuePlace, chunk: int = CHUNK
) -> KeyValueBytes:
    """What a KeyValueCache over `window` latent frames of `frame_tokens` tokens each takes."""
    shapes = stored_shapes(config, (window, chunk), frame_tokens, dtype, place)
    block = _nbytes(shapes)
    working = 2 * window * frame_tokens * config.dim * dtype.itemsize if place.eight_bit and not place.fp8 else 0
    there = len(place.on_device(config.num_layers))
    away = config.num_layers - there
    stored = _nbytes(shapes, (window - chunk) * frame_tokens)
    return KeyValueBytes((there + min(away, 1) * HostStorage.BUFFERS) * block, working, away * stored)


def _nbytes(shapes: Shapes, most: int | None = None) -> int:
    """Bytes of tensors, of which no more than `most` rows are counted."""
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
    """Where keys and values may lie in a mode, the best first; wherever it is, as `fp8` if that is wanted."""
    return [place._replace(fp8=fp8, eight_bit=place.eight_bit and not fp8) for place in _PLACES[mode]]


HOST_SHARE = 0.7
"""The share of the free host memory that pinned keys and values may take."""
