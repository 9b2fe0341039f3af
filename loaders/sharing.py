"""Blocks whose bytes are divided among several processes, and gathered from them before use."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, distributed

from ..model.parallel import start_gather
from .chunks import ALIGNMENT, Chunk, clipped
from .uploader import Uploader


def piece_bytes(block: int, processes: int) -> int:
    """Bytes of a block's buffer of `block` bytes that one of the processes keeps."""
    return -(-block // (processes * ALIGNMENT)) * ALIGNMENT


class SharedBlocks:
    """One process's piece of every block on its device. All processes gather the same blocks in the same order.

    On GPUs the gathers run on a stream of the process group's own, each behind the work that the caller's stream held
    when it was started. So the group should serve nothing else."""

    def __init__(self, device: torch.device, group: distributed.ProcessGroup) -> None:
        self._device, self._group = device, group
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}
        self._last: distributed.Work | None = None

    def load(self, blocks: dict[int, tuple[list[Chunk], Tensor, int]]) -> None:
        """Reads this process's pieces. `blocks`: by index, the chunks that fill a buffer, the buffer, and the bytes of
        it that the block takes. Raises what reading a file raises."""
        rank, size = self._group.rank(), self._group.size()
        with Uploader(self._device) as uploader:
            for index, (chunks, buffer, nbytes) in blocks.items():
                length = piece_bytes(nbytes, size)
                piece = torch.empty(length, dtype=torch.uint8, device=self._device)
                uploader.start(clipped(chunks, rank * length, (rank + 1) * length, piece)).wait()
                self._blocks[index] = buffer[: size * length], piece

    def start(self, index: int) -> distributed.Work:
        """Starts to gather a block into its buffer; its `wait` returns when it is there, on a GPU for the stream."""
        buffer, piece = self._blocks[index]
        self._last = start_gather(buffer, piece, self._group)
        return self._last

    def close(self) -> None:
        """On a GPU what the caller's stream does next waits for the gathers, which write into memory that is freed."""
        if self._last is not None and self._device.type == "cuda":
            with contextlib.suppress(RuntimeError):  # another process has gone, and this one ends
                self._last.wait()
