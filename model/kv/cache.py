"""The cache of keys and values of the latent frames to which a causal model's chunk attends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...options import CHUNK, Window
from ..attention.choose_8bit import reads_transposed_values
from ..attention.fp8 import FP8, Operand, Scaling, first_keys_and_scalings, transposed_columns, wrap_fp8_queries
from ..attention.fp8_cudnn import padding
from ..cache import Pair
from ..config import ModelConfig
from ..host_memory import upload
from ..ops.pointwise import decode_8bit_, encode_8bit
from ..ops.scatter import (
    BeforeRope,
    rope_fp8,
    scatter_,
    scatter_fp8_,
    scatter_qkv_,
    scatter_rope_,
    scatter_transposed_,
)
from .place import ON_DEVICE, KeyValuePlace, stored_shapes
from .slots import Slots, TokenRange
from .storage import DeviceStorage, HostStorage, SplitStorage, Storage

FP8_HEADROOM = 16.0
"""In an fp8 cache, values of later chunks may exceed the first chunk's maximum by this factor without being clamped."""


class KeyValueCache:
    """The cache of one video's keys and values of all blocks in a window of latent frames.

    Call `begin` before each chunk, and pass the cache as `options["kv_cache"]`. After denoising, set the attribute
    `keep` to True, run one more forward, and set `keep` to False. Later chunks attend to that forward's keys and
    values.
    """

    def __init__(
        self,
        config: ModelConfig,
        frame_tokens: int,
        held: Window,
        *,
        chunk: int = CHUNK,
        device: torch.device | str,
        dtype: torch.dtype,
        place: KeyValuePlace = ON_DEVICE,
    ) -> None:
        """Create the cache. Raise InputError if the window is shorter than its sink plus one chunk.

        frame_tokens: the number of tokens of a latent frame.
        held: the window's length, and the length of its sink (the first frames, which always stay).
        chunk: the number of latent frames that are generated together.
        place: location and format; set `fp8` only if `choose_8bit.supports_fp8_cache` is True.
        """
        window, sink = held.frames, held.sink
        if not 0 <= sink <= window - chunk:
            raise InputError(f"window is {window} latent frames, expected at least sink ({sink}) + {chunk}")
        self.window, self.sink, self.keep, self._chunk = window, sink, False, chunk
        self.first_frame, self._next, self._used = 0, 0, 0
        self._frame_tokens, self._heads = frame_tokens, config.num_heads
        self._own = torch.zeros(chunk * frame_tokens, dtype=torch.int64, device=device)
        self._mask, self._by_frames = torch.zeros(window, device=device), False
        self._slots = Slots(window, sink, chunk, frame_tokens)
        self._kept: list[TokenRange] = []
        self._past: list[TokenRange] = []
        self._place = place._replace(int8=place.int8 and not place.fp8)
        self._on_device = frozenset(self._place.on_device(config.num_layers))
        in_fp8, device = self._place.fp8 and self._place.is_read_directly, torch.device(device)
        self._transposes_values = in_fp8 and reads_transposed_values(device, config.head_dim)
        self._columns = torch.zeros_like(self._own) if self._transposes_values else None
        self._storage = self._stored_on(device, config, dtype)
        self._decoded = (window * frame_tokens, config.dim), dtype
        self._scalings: list[tuple[Scaling, Scaling] | None] = [None] * config.num_layers

    def _stored_on(self, device: torch.device, config: ModelConfig, dtype: torch.dtype) -> Storage:
        blocks, there = config.num_layers, len(self._on_device)
        shapes = stored_shapes(config, (self.window, self._chunk), self._frame_tokens, dtype, self._place)
        if self._transposes_values:
            shapes[1] = shapes[1][0][::-1], FP8
        if there == blocks:
            return DeviceStorage(shapes, blocks, device)
        host = HostStorage(shapes, (self.window - self._chunk) * self._frame_tokens, blocks - there, device)
        return SplitStorage(DeviceStorage(shapes, there, device), host, self._on_device, blocks)

    @property
    def repeatable(self) -> bool:
        """Whether the current forward may be repeated after a failure. False if the forward may already have
        overwritten earlier frames."""
        return not self.keep or self._place.is_read_directly

    @property
    def is_read_directly(self) -> bool:
        return self._place.is_read_directly

    def mask_empty_slots(self) -> None:
        """Let attention process all slots and mask empty ones, so that every forward runs the same kernels. Call this
        only if attention reads the stored tensors without copies, and the device supports `attend_to_frames`."""
        self._by_frames = True

    @property
    def frame_mask(self) -> Tensor | None:
        """The additive attention mask, fp32 [window]: 0 for a slot of the window that holds a frame, else -inf. None if
        attention reads filled slots only."""
        return self._mask if self._by_frames and not self._full else None

    @property
    def window_state(self) -> str | None:
        """A name for the kernels that forwards run: "full" if all slots have frames, or "filling" if attention masks
        empty slots. None if later forwards may run other kernels: CUDA graphs must wait."""
        if self._place.fp8 and None in self._scalings:
            return None
        return "full" if self._full else "filling" if self._by_frames else None

    @contextmanager
    def as_if_full(self) -> Iterator[None]:
        """A context manager that makes forwards run the kernels of a full window, even if some slots are still
        empty."""
        used, self._used = self._used, self.window * self._frame_tokens
        try:
            yield
        finally:
            self._used = used

    @property
    def _full(self) -> bool:
        return self._used == self.window * self._frame_tokens

    def ends_at(self, block: int) -> bool:
        """Whether the current forward may end once this block's keys and values are computed. True in the model's last
        block if `keep` is set: the forward then only fills the cache."""
        return self.keep and block == len(self._scalings) - 1

    def begin(self, again: bool = False) -> None:
        """Start the next chunk of the video. With `again`, restart the current, unfinished chunk."""
        first = self.first_frame = self.first_frame if again else self._next
        after = self._next = first + self._chunk
        own, slots = range(first, after), self._slots
        starts = torch.tensor([slots.window_slot(frame) for frame in own]) * self._frame_tokens
        rows = (starts[:, None] + torch.arange(self._frame_tokens)).flatten()
        self._own.copy_(upload(rows, self._own.device))
        if self._columns is not None:
            self._columns.copy_(upload(transposed_columns(rows), self._own.device))
        self._kept = slots.ranges(frame for frame in own if slots.is_seen(frame, after))
        self._past = slots.ranges(frame for frame in range(first) if slots.is_seen(frame, first))
        self._used = min(after, self.window) * self._frame_tokens
        self._mask[min(after, self.window) :] = -torch.inf
        self._mask[: min(after, self.window)] = 0
        in_8_bits = self._place.int8  # then a copy on the device has the layout of storage
        self._storage.begin([TokenRange(past.stored, past.stored) for past in self._past] if in_8_bits else self._past)

    def check(self, x: Tensor) -> None:
        """Raise InputError if x [B, C, F, H, W] is not one video's chunk of the cache's size, or before `begin`."""
        if not self._used:
            raise InputError("the KV cache has no chunk yet: call its method begin first")
        found = len(x), x.shape[2], x.shape[3] * x.shape[4] // 4
        if found != (1, self._chunk, self._frame_tokens):
            raise InputError(
                "the latent has a batch of {}, {} latent frames and {} tokens a frame; ".format(*found)
                + f"the KV cache takes one video's chunk of {self._chunk} latent frames of {self._frame_tokens} tokens"
            )

    @property
    def in_fp8(self) -> bool:
        """Whether `extend` returns keys and values as Operands (in fp8)."""
        return self._place.fp8

    def extend(
        self, block: int, queries: Tensor | BeforeRope | None, keys: Tensor | BeforeRope, values: Tensor
    ) -> tuple[Any, Any, Any]:
        """Add the current chunk's keys and values [tokens, dim] to a block's window. Return the queries, and the
        window's keys and values, valid until the next call. An fp8 cache returns Operands, except that queries given as
        a Tensor are returned unchanged.

        queries: None if only the cache is filled.
        """
        stored, scalings = self._storage.fetch(block), None
        if self._place.fp8:
            keys, scalings = self._scaled(block, keys, values)
        seen = self._decode(stored) if self._place.int8 else stored
        made = self._scatter(seen, queries, keys, values, scalings)
        if self.keep and not self._stored_in_place(block):
            self._store(block, seen)
        used = self._used if self.frame_mask is None else self.window * self._frame_tokens
        return made, *(self._operands(seen, scalings, used) if scalings else (seen[0][:used], seen[1][:used]))

    def _store(self, block: int, seen: Sequence[Tensor]) -> None:
        """Copy the current chunk's keys and values from `seen`, the tensors of a block that attention reads, to
        storage. Leave out frames to which no later chunk attends."""
        for kept in self._kept:
            rows = [tokens[kept.seen] for tokens in seen]
            if self._place.int8:
                rows = [part for each in rows for part in encode_8bit(each, self._heads)]
            self._storage.store(block, kept.stored, rows)

    def _scatter(
        self,
        seen: Sequence[Tensor],
        queries: Tensor | BeforeRope | None,
        keys: Tensor | BeforeRope,
        values: Tensor,
        scalings: tuple[Scaling, Scaling] | None = None,
    ) -> Tensor | Operand | None:
        """Write keys and values into `seen`, which holds all keys and values that the block's attention reads.
        BeforeRope tensors first get norm and RoPE. Return the queries, or None if there are none. With fp8 `scalings`
        of keys and values, BeforeRope queries become an fp8 Operand."""
        pairs = None if scalings is None else (scalings[0].shift_and_factor, scalings[1].shift_and_factor)
        into = seen[0], None if self._columns is not None else seen[1]
        made: Tensor | tuple[Tensor, Tensor, Tensor] | None
        if isinstance(queries, BeforeRope) and isinstance(keys, BeforeRope):
            made = scatter_qkv_(into, self._own, (queries, keys, values), pairs)
        else:
            for tokens, new, pair in zip(into, (keys, values), pairs or (None, None), strict=True):
                if tokens is not None:
                    self._scatter_one(tokens, new, pair)
            rotate = BeforeRope.apply_rope_ if pairs is None else rope_fp8
            made = rotate(queries) if isinstance(queries, BeforeRope) else queries
        if self._columns is not None and pairs is not None:
            scatter_transposed_(seen[1], self._columns, values, *pairs[1])
        return wrap_fp8_queries(*made) if isinstance(made, tuple) else made

    def _scatter_one(self, tokens: Tensor, new: Tensor | BeforeRope, pair: Pair | None) -> None:
        if isinstance(new, BeforeRope):
            scatter_rope_(tokens, self._own, new, pair or (None, None))
        elif pair is None:
            scatter_(tokens, self._own, new)
        else:
            scatter_fp8_(tokens, self._own, new, *pair)

    def _scaled(
        self, block: int, keys: Tensor | BeforeRope, values: Tensor
    ) -> tuple[Tensor | BeforeRope, tuple[Scaling, Scaling]]:
        """Return a block's keys, and the Scalings that quantize its keys and values to fp8. The video's first chunk
        computes the Scalings, and returns keys after norm and RoPE. Later chunks return `keys` unchanged."""
        scalings = self._scalings[block]
        if scalings is None:
            keys, scalings = first_keys_and_scalings(keys, values, FP8_HEADROOM)
        if self.keep:
            self._scalings[block] = scalings
        return keys, scalings

    def _operands(
        self, seen: Sequence[Tensor], scalings: tuple[Scaling, Scaling], used: int
    ) -> tuple[Operand, Operand]:
        of_keys, of_values = scalings
        if self._transposes_values:
            return Operand(seen[0][:used], of_keys), Operand(seen[1], of_values, transposed_tokens=used)
        if self.frame_mask is None and seen[0].device.type == "cuda":
            used += padding(used)
        return Operand(seen[0][:used], of_keys), Operand(seen[1][:used], of_values)

    def _decode(self, stored: Sequence[Tensor]) -> Pair:
        shape, dtype = self._decoded
        keys, values = (torch.empty(shape, dtype=dtype, device=stored[0].device) for _ in range(2))
        for past, seen in self._past:
            decode_8bit_(keys[seen], stored[0][past], stored[1][past])
            decode_8bit_(values[seen], stored[2][past], stored[3][past])
        return keys, values

    def _stored_in_place(self, block: int) -> bool:
        return not self._place.int8 and block in self._on_device
