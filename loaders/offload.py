"""Streaming of a model's last blocks: their weights are copied to the device shortly before they run."""

import contextlib
import os
import weakref
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, distributed

from ..model.dit import LingBotWorldModel
from ..model.parallel import start_gather
from ..model.quantized.parameters import frozen_parameter
from ..weights.quantized import quantized_tensors
from ..weights.tensors import check_scales
from .checkpoint import Checkpoint
from .chunks import (
    ALIGNMENT,
    FileChunk,
    block_of,
    buffer_bytes,
    group_by_key,
    piece_chunks,
    ranges_in,
    split_into_chunks,
    tensor_at,
)
from .lora import lora_bytes
from .uploader import Upload, Uploader, UploadSettings

SLOTS = 2
SETTINGS = UploadSettings(threads=min(4, os.cpu_count() or 1), sleep=True)
"""The upload settings for streamed blocks, which are copied to the device in every forward."""


def streamed_weights(checkpoint: Checkpoint, resident_blocks: int) -> dict[int, list[str]]:
    """Return the names of the linear weights in each block after the first `resident_blocks`, by block index."""
    names: dict[int, list[str]] = {index: [] for index in range(resident_blocks, checkpoint.config.num_layers)}
    for name, shape in checkpoint.shapes.items():
        block = int(name.split(".")[1]) if name.startswith("blocks.") else -1
        if block in names and len(shape) == 2:
            names[block].append(name)
    return names


def resident_weights(checkpoint: Checkpoint, streamed: dict[int, list[str]]) -> list[str]:
    """Return the names of the checkpoint's parameters that are not streamed."""
    names = {name for names in streamed.values() for name in names}
    return [name for name in checkpoint.shapes if name not in names]


def weight_bytes(checkpoint: Checkpoint, resident_blocks: int | None = None, processes: int = 1) -> int:
    """Return the bytes of weights, streaming buffers and LoRAs on one device. `resident_blocks` blocks stay there
    (None: all). With several `processes`, each also holds a piece of every streamed block."""
    if resident_blocks is None:
        return checkpoint.nbytes
    names = streamed_weights(checkpoint, resident_blocks)
    blocks = [buffer_bytes(checkpoint.entries(each)) for each in names.values()]
    resident = group_by_key(checkpoint.entries(resident_weights(checkpoint, names)), block_of)
    pieces = [piece_bytes(block, processes) for block in blocks] if processes > 1 else []
    slot = max([*blocks, *(processes * piece for piece in pieces)], default=0)
    return (
        min(SLOTS, len(blocks)) * slot + sum(pieces) + sum(map(buffer_bytes, resident)) + lora_bytes(checkpoint.changes)
    )


def piece_bytes(nbytes: int, processes: int) -> int:
    """Return the size in bytes of each process's piece of a block with a buffer of `nbytes` bytes."""
    return -(-nbytes // (processes * ALIGNMENT)) * ALIGNMENT


_PendingCopy: TypeAlias = Upload | distributed.Work
"""A copy of a block's weights in progress. On a GPU, `wait` makes the current stream wait for the copy."""


class StreamedBlock(NamedTuple):
    """The file chunks of a block's weights, and the uint8 buffer that they fill up to byte `nbytes`."""

    chunks: list[FileChunk]
    buffer: Tensor
    nbytes: int


class _FileBlocks:
    def __init__(self, device: torch.device) -> None:
        self._uploader = Uploader(device, SETTINGS)
        self._chunks: dict[int, list[FileChunk]] = {}
        self.close = self._uploader.close

    def load(self, blocks: dict[int, StreamedBlock]) -> None:
        self._chunks = {index: block.chunks for index, block in blocks.items()}

    def start(self, index: int) -> _PendingCopy:
        return self._uploader.start(self._chunks[index])


class SharedBlocks:
    """Streamed blocks, gathered from processes that each hold a piece. All processes must gather the same blocks in the
    same order, in a process group that serves nothing else."""

    def __init__(self, device: torch.device, group: distributed.ProcessGroup) -> None:
        self._device, self._group = device, group
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}
        self._last: distributed.Work | None = None

    def load(self, blocks: dict[int, StreamedBlock]) -> None:
        """Copy this process's piece of each block in `blocks` (by block index) from the file to device memory."""
        rank, size = self._group.rank(), self._group.size()
        with Uploader(self._device) as uploader:
            for index, (chunks, buffer, nbytes) in blocks.items():
                length = piece_bytes(nbytes, size)
                piece = torch.empty(length, dtype=torch.uint8, device=self._device)
                uploader.start(piece_chunks(chunks, rank * length, piece)).wait()
                self._blocks[index] = buffer[: size * length], piece

    def start(self, index: int) -> distributed.Work:
        """Start gathering a block's pieces from all processes, and return the operation. On a GPU, its `wait` blocks
        the current stream, not the CPU."""
        buffer, piece = self._blocks[index]
        self._last = start_gather(buffer, piece, self._group)
        return self._last

    def close(self) -> None:
        """Make the CUDA stream wait for the last gather, so that the buffer can be freed."""
        if self._last is not None and self._device.type == "cuda":
            with contextlib.suppress(RuntimeError):  # another process has ended, and this one ends too
                self._last.wait()


class BlockStreamer:
    """A copier of streamed blocks to the device, shortly before each block runs. Weights come from the file. With
    `group`, each process holds a piece of every block, and the pieces are gathered.

    parameters: views of shared buffers by weight name, valid only while the weight's block runs.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: dict[int, list[str]],
        device: torch.device,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        self._blocks, self._slots = list(weights), min(SLOTS, len(weights))
        self._in_step = group is not None
        blocks: dict[int, StreamedBlock] = {}
        self.parameters: dict[str, Tensor] = {}
        entries = {index: checkpoint.entries(names) for index, names in weights.items()}
        sizes = {index: buffer_bytes(each) for index, each in entries.items()}
        processes = 1 if group is None else group.size()
        room = max(processes * piece_bytes(size, processes) for size in sizes.values())
        with torch.inference_mode(False), torch.no_grad():  # ordinary tensors: the reader threads write to them
            slots = [torch.empty(room, dtype=torch.uint8, device=device) for _ in range(self._slots)]
            self._source = _FileBlocks(device) if group is None else SharedBlocks(device, group)
            for index, names in weights.items():
                slot = slots[index % self._slots]
                targets = ranges_in(slot, entries[index])
                chunks = list(split_into_chunks(entries[index], targets, SETTINGS.chunk_bytes))
                blocks[index] = StreamedBlock(chunks, slot, sizes[index])
                tensors = {entry.name: tensor_at(targets[entry.name], entry) for entry in entries[index]}
                quantized = {name: checkpoint.quantized[name] for name in names if name in checkpoint.quantized}
                check_scales(checkpoint.entries(quantized))
                self.parameters |= {name: frozen_parameter(tensors[name]) for name in names if name not in quantized}
                self.parameters |= quantized_tensors(quantized, tensors, None, device)
            self._source.load(blocks)
        self._in_slot: dict[int, tuple[int, _PendingCopy]] = {}
        """For each shared buffer, the index of its block and the running copy of the block's weights."""

    def attach(self, model: LingBotWorldModel) -> None:
        """Start to copy the first streamed blocks, and add hooks that copy the others during a forward. A forward
        raises CheckpointError if reading fails."""
        model.in_step = self._in_step
        weakref.finalize(model, self._source.close)
        for index in self._blocks:
            model.blocks[index].register_forward_pre_hook(partial(self._before, index))
            model.blocks[index].register_forward_hook(partial(self._after, index))
        for index in self._blocks[: self._slots]:
            self._fill(index)

    def _before(self, index: int, *_: Any) -> None:
        """Wait for the weights of block `index`. If an interrupted forward left another block in the shared buffer,
        copy the weights first."""
        block, arrival = self._in_slot[index % self._slots]
        arrival.wait()
        if block != index:
            self._fill(index).wait()

    def _after(self, index: int, *_: Any) -> None:
        """Forward hook of block `index`: start to copy the next block that uses the same buffer."""
        following = index + self._slots
        if following > self._blocks[-1]:
            following = next(block for block in self._blocks if (block - index) % self._slots == 0)
        if following != index:
            self._fill(following)

    def _fill(self, index: int) -> _PendingCopy:
        arrival = self._source.start(index)
        self._in_slot[index % self._slots] = index, arrival
        return arrival
