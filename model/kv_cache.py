"""Keys and values of the latent frames that a causal model looks back on.

A cache has a slot for each latent frame of its window. The first `sink` slots keep the video's first frames for good;
the others are taken in turns, so that a new frame overwrites the oldest. Keys are stored rotated by their absolute
position, and attention has no mask: the order of the slots does not matter, and nothing is ever moved.

They lie on the model's device or, `on_host`, in pinned host memory, from where each block's are brought to the device
while the block before computes. `eight_bit` stores them as int8 with a scale for each token and head, `fp8` as
attention in 8 bits takes them: with a scale and a mean that each block's first clean chunk sets for the whole video.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..options import KeyValueMode
from .cache import Pair
from .config import ModelConfig
from .fp8_attention import FP8, Operand, Scaling, padding, sample, scaling
from .kv_storage import DeviceStorage, HostStorage, Storage
from .pointwise import decode_8bit_, encode_8bit, to_fp8_

FP8_HEADROOM = 16.0
"""In fp8, later keys and values may be so many times as large as the largest of the first chunk."""


class Slots(NamedTuple):
    """Tokens of the running chunk and their place in the cache."""

    chunk: slice
    cache: slice


class KeyValueCache:
    """Keys and values of every block over a window of latent frames, for one video.

    Begin each chunk with `begin`, give the cache to the model as `options["kv_cache"]`, and set `keep` for the forward
    of the clean chunk: its keys and values are the ones that later chunks see. Those of the other forwards serve that
    forward alone."""

    def __init__(
        self,
        config: ModelConfig,
        frame_tokens: int,
        window: int,
        sink: int = 0,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        eight_bit: bool = False,
        on_host: bool = False,
        fp8: bool = False,
    ) -> None:
        """`frame_tokens`: tokens of a latent frame. `window`: latent frames that the cache holds, those of the running
        chunk included. `dtype`: of the model's keys and values. `fp8`, for a model whose attention `takes_operands`,
        goes before `eight_bit`. Raises InputError for a window that `sink` leaves no room in."""
        if not 0 <= sink < window:
            raise InputError(f"window is {window} and sink {sink} latent frames; the window has to be the larger one")
        self.window, self.sink, self.keep = window, sink, False
        self.first_frame, self.frames = 0, 0
        self._frame_tokens, self._heads = frame_tokens, config.num_heads
        self._slots: list[Slots] = []
        self._past: list[slice] = []
        self._used = 0
        shapes = _shapes(config, window * frame_tokens, dtype, eight_bit, fp8)
        storage = HostStorage if on_host else DeviceStorage
        self._storage: Storage = storage(shapes, config.num_layers, torch.device(device))
        self._decoded = (window * frame_tokens, config.dim), dtype
        self._eight_bit, self._on_host, self._fp8 = eight_bit, on_host, fp8
        self._scalings: list[tuple[Scaling, Scaling] | None] = [None] * config.num_layers
        self.in_place = not eight_bit and not on_host and not fp8
        """Whether `extend` gives the stored tensors themselves, so that all it is given is stored."""

    @property
    def place(self) -> tuple:
        """The running chunk's slots, and how many tokens it sees: the same kernels serve chunks with the same place."""
        return tuple((slots.cache.start, slots.cache.stop) for slots in self._slots), self._used

    def ends_at(self, block: int) -> bool:
        """Whether this block's keys and values are the last of what is wanted of the running forward: nobody looks at
        the velocity of a clean chunk."""
        return self.keep and block == len(self._scalings) - 1

    def begin(self, frames: int = 3) -> None:
        """The next `frames` latent frames of the video are the running chunk from now on."""
        first = self.first_frame + self.frames
        if self.sink + frames > self.window:
            raise InputError(
                f"a window of {self.window} latent frames has no room for {self.sink} that stay (sink) and a chunk of "
                f"{frames}; it takes at least {self.sink + frames}"
            )
        self.first_frame, self.frames = first, frames
        taken = [self._slot(frame) for frame in range(first, first + frames)]
        others = [slot for slot in range(min(first, self.window)) if slot not in taken]
        self._slots = self._token_slices(taken)
        self._past = [cache for _, cache in self._token_slices(others)]
        self._used = min(first + frames, self.window) * self._frame_tokens
        self._storage.begin(self._past)

    def extend(self, block: int, keys: Tensor, values: Tensor) -> Pair | tuple[Operand, Operand]:
        """Keys and values [seen tokens, dim] that the running chunk attends to in this block: those of the earlier
        frames in the window, and the chunk's own (`keys` and `values`, [chunk tokens, dim]). They stay
        valid until the block after the next one calls this."""
        stored = self._storage.fetch(block)
        if self._fp8:
            return self._extend_fp8(block, keys, values, stored)
        seen = self._decode(stored) if self._eight_bit else stored
        for chunk, cache in self._slots:
            seen[0][cache], seen[1][cache] = keys[chunk], values[chunk]
        if self.keep and not self.in_place:
            self._keep(block, keys, values)
        return seen[0][: self._used], seen[1][: self._used]

    def _extend_fp8(
        self, block: int, keys: Tensor, values: Tensor, stored: Sequence[Tensor]
    ) -> tuple[Operand, Operand]:
        scalings = self._scalings[block]
        if scalings is None:
            scalings = scaling(keys, sample(keys), FP8_HEADROOM), scaling(values, values, FP8_HEADROOM)
        if self.keep:
            self._scalings[block] = scalings
        for chunk, cache in self._slots:
            for tokens, new, each in zip(stored, (keys, values), scalings, strict=True):
                to_fp8_(tokens[cache], new[chunk], each.mean, each.factor)
            if self.keep and self._on_host:
                self._storage.store(block, cache, [tokens[cache] for tokens in stored])
        seen = self._used + (padding(self._used) if keys.device.type == "cuda" else 0)
        return Operand(stored[0][:seen], scalings[0]), Operand(stored[1][:seen], scalings[1])

    def _keep(self, block: int, keys: Tensor, values: Tensor) -> None:
        rows = [keys, values]
        if self._eight_bit:
            rows = [*encode_8bit(keys, self._heads), *encode_8bit(values, self._heads)]
        for chunk, cache in self._slots:
            self._storage.store(block, cache, [row[chunk] for row in rows])

    def _decode(self, stored: Sequence[Tensor]) -> Pair:
        shape, dtype = self._decoded
        keys, values = (torch.empty(shape, dtype=dtype, device=stored[0].device) for _ in range(2))
        for past in self._past:
            decode_8bit_(keys[past], stored[0][past], stored[1][past])
            decode_8bit_(values[past], stored[2][past], stored[3][past])
        return keys, values

    def _slot(self, frame: int) -> int:
        return frame if frame < self.sink else self.sink + (frame - self.sink) % (self.window - self.sink)

    def _token_slices(self, slots: list[int]) -> list[Slots]:
        """The slots as slices of tokens; neighbours make one."""
        size = self._frame_tokens
        found: list[Slots] = []
        for index, slot in enumerate(slots):
            if found and slot == slots[index - 1] + 1:
                chunk, cache = found[-1]
                found[-1] = Slots(slice(chunk.start, chunk.stop + size), slice(cache.start, cache.stop + size))
            else:
                found.append(Slots(slice(index * size, (index + 1) * size), slice(slot * size, (slot + 1) * size)))
        return found


def _shapes(config: ModelConfig, tokens: int, dtype: torch.dtype, eight_bit: bool, fp8: bool) -> list[tuple]:
    """Shape and dtype of what a block stores: keys and values, in int8 each with scales, in fp8 tokens of zeros behind
    them."""
    if fp8:
        return [((tokens + padding(tokens), config.dim), FP8)] * 2
    if eight_bit:
        return [((tokens, config.dim), torch.int8), ((tokens, config.num_heads), torch.float32)] * 2
    return [((tokens, config.dim), dtype)] * 2


class KeyValueBytes(NamedTuple):
    """Bytes of a KeyValueCache: on the device, there while a forward runs, and in pinned host memory."""

    device: int
    working: int
    host: int


def key_value_bytes(
    config: ModelConfig,
    tokens: int,
    dtype: torch.dtype,
    *,
    eight_bit: bool = False,
    on_host: bool = False,
    fp8: bool = False,
) -> KeyValueBytes:
    """What a KeyValueCache over `tokens` tokens (window * tokens of a frame) takes."""

    def block_bytes(eight_bit: bool, fp8: bool) -> int:
        shapes = _shapes(config, tokens, dtype, eight_bit, fp8)
        return sum(rows * columns * kind.itemsize for (rows, columns), kind in shapes)

    block = block_bytes(eight_bit, fp8)
    stored, decoded = config.num_layers * block, block_bytes(False, False) if eight_bit and not fp8 else 0
    if on_host:
        return KeyValueBytes(HostStorage.BUFFERS * block, decoded, stored)
    return KeyValueBytes(stored, decoded, 0)


class KeyValuePlace(NamedTuple):
    """Where a KeyValueCache's tensors lie, and in which form."""

    eight_bit: bool = False
    on_host: bool = False
    fp8: bool = False


_GPU, _HOST = KeyValuePlace(), KeyValuePlace(on_host=True)
_8BIT, _8BIT_ON_HOST = KeyValuePlace(eight_bit=True), KeyValuePlace(eight_bit=True, on_host=True)
_PLACES: dict[KeyValueMode, tuple[KeyValuePlace, ...]] = {
    "auto": (_GPU, _8BIT, _HOST, _8BIT_ON_HOST),
    "gpu": (_GPU,),
    "8bit": (_8BIT, _8BIT_ON_HOST),
    "host": (_HOST,),
}


def key_value_places(mode: KeyValueMode, fp8: bool) -> list[KeyValuePlace]:
    """Where keys and values may lie in a mode, the best first; wherever it is, as `fp8` if that is wanted."""
    return [place._replace(fp8=fp8) for place in _PLACES[mode]]


HOST_SHARE = 0.7
"""The share of the free host memory that pinned keys and values may take."""
