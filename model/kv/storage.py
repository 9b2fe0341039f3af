"""Storage for the tensors of a KeyValueCache, on the model's device or in pinned host memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..host_memory import Pinning
from .slots import TokenRange

Shapes = Sequence[tuple[tuple[int, int], torch.dtype]]


class DeviceStorage:
    """The storage of all blocks' tensors [tokens, columns] on the device. `fetch` returns the stored tensors, not
    copies."""

    def __init__(self, shapes: Shapes, blocks: int, device: torch.device) -> None:
        self._blocks = [
            [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes] for _ in range(blocks)
        ]

    def begin(self, past: Sequence[TokenRange]) -> None:
        """Start a chunk for which `fetch` must provide the tokens `past` of earlier frames. Nothing to do here, because
        all tokens stay on the device."""

    def fetch(self, block: int) -> Sequence[Tensor]:
        """Return a block's tensors [tokens, columns] on the device. Rows outside `past` (see `begin`) are undefined;
        the caller may write the current chunk there."""
        return self._blocks[block]

    def store(self, block: int, tokens: slice, rows: Sequence[Tensor]) -> None:
        """Write new keys and values of a block to the token slice `tokens`. `rows` has one tensor [new tokens, columns]
        for each of the block's stored tensors, in order."""
        for tensor, row in zip(self._blocks[block], rows, strict=True):
            tensor[tokens] = row


class _Copy(NamedTuple):
    block: int
    buffers: list[Tensor]
    arrived: torch.cuda.Event | None


class HostStorage:
    """The storage of all blocks' keys and values in host memory. While a block computes, the next block's keys and
    values are copied to the device."""

    BUFFERS = 2

    def __init__(self, shapes: Shapes, stored: int, blocks: int, device: torch.device) -> None:
        """Allocate host memory for `stored` tokens of each block, and device buffers for the tensors that `fetch`
        returns. `shapes` has each buffer's shape and dtype."""
        self._device = device
        self._past: Sequence[TokenRange] = ()
        self._host = [[torch.empty(stored, *shape[1:], dtype=dtype) for shape, dtype in shapes] for _ in range(blocks)]
        self._buffers = [
            [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in shapes] for _ in range(self.BUFFERS)
        ]
        self._turn, self._stream = 0, None
        self._pinning: Pinning | None = None
        self._next: _Copy | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._pinning = Pinning(self, self._host, device)

    def begin(self, past: Sequence[TokenRange]) -> None:
        self._past = past
        self._next = self._start_copy(0)

    def fetch(self, block: int) -> Sequence[Tensor]:
        here = self._next
        if here is None or here.block != block:  # the previous forward ended early
            here = self._start_copy(block)
        self._next = self._start_copy((block + 1) % len(self._host))
        if here.arrived is not None:
            torch.cuda.current_stream(self._device).wait_event(here.arrived)
        return here.buffers

    def store(self, block: int, tokens: slice, rows: Sequence[Tensor]) -> None:
        if self._pinning is not None:
            self._pinning.wait(block)
        with self._behind_current_work():
            for tensor, row in zip(self._host[block], rows, strict=True):
                tensor[tokens].copy_(row, non_blocking=True)
                if self._stream is not None:
                    row.record_stream(self._stream)

    def _start_copy(self, block: int) -> _Copy:
        self._turn = (self._turn + 1) % self.BUFFERS
        buffers = self._buffers[self._turn]
        with self._behind_current_work():
            for buffer, tensor in zip(buffers, self._host[block], strict=True):
                for tokens in self._past:
                    buffer[tokens.seen].copy_(tensor[tokens.stored], non_blocking=True)
            return _Copy(block, buffers, None if self._stream is None else self._stream.record_event())

    def _behind_current_work(self) -> AbstractContextManager:
        """Return a context manager that makes the copy stream current. Copies in it wait for work queued before, which
        may still read the buffers."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)


class SplitStorage:
    """A storage with some blocks' tensors on the device and the others' in host memory."""

    def __init__(self, device: DeviceStorage, host: HostStorage, on_device: Collection[int], blocks: int) -> None:
        """Use `device` for the blocks with the indices `on_device`, and `host` for the others. `blocks` is the number
        of all blocks."""
        self._host = host
        counts = {True: 0, False: 0}
        self._places: list[tuple[DeviceStorage | HostStorage, int]] = []
        for block in range(blocks):
            there = block in on_device
            self._places.append((device if there else host, counts[there]))
            counts[there] += 1

    def begin(self, past: Sequence[TokenRange]) -> None:
        self._host.begin(past)

    def fetch(self, block: int) -> Sequence[Tensor]:
        storage, index = self._places[block]
        return storage.fetch(index)

    def store(self, block: int, tokens: slice, rows: Sequence[Tensor]) -> None:
        storage, index = self._places[block]
        storage.store(index, tokens, rows)


Storage: TypeAlias = DeviceStorage | HostStorage | SplitStorage
