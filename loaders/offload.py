"""An expert that is larger than the GPU: the weights of its last blocks pass through a few device buffers, the slots.
They come from the file, or from the GPUs of several processes, of which each keeps a piece of every block.

The parameters of a block are views of one slot for good, so that the model is an ordinary one. When a block has run,
the next block of its slot is uploaded into it; after the last block come the first ones again, for the next step.
The upload stays hidden while a block takes longer to compute than its bytes take to come.
"""

import contextlib
import os
import weakref
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, distributed

from ..model.dit import LingBotWorldModel
from ..model.parallel import start_gather
from ..model.quantized.parameters import frozen_parameter
from ..weights.quantized import quantized_tensors
from ..weights.tensors import check_finite
from .checkpoint import Checkpoint
from .chunks import ALIGNMENT, Chunk, block_of, buffer_bytes, by_key, chunks_of, clipped, targets_in, tensor_at
from .lora import change_bytes
from .uploader import Uploader, UploadSettings

SLOTS = 2
SETTINGS = UploadSettings(threads=min(4, os.cpu_count() or 1), sleep=True)
"""At most 128 MB of pinned memory."""


def streamed_weights(checkpoint: Checkpoint, resident_blocks: int | None) -> dict[int, list[str]]:
    """Names of the linear weights of each block after the first `resident_blocks`, by block; none for None.

    The rest of a block (biases, norms, modulation: 0.3 MB of 235) always stays on the device."""
    layers = checkpoint.config.num_layers
    first = layers if resident_blocks is None else resident_blocks
    names: dict[int, list[str]] = {index: [] for index in range(first, layers)}
    for name, shape in checkpoint.shapes.items():
        block = int(name.split(".")[1]) if name.startswith("blocks.") else -1
        if block in names and len(shape) == 2:
            names[block].append(name)
    return names


def staying_weights(checkpoint: Checkpoint, streamed: dict[int, list[str]]) -> list[str]:
    """Names of all other parameters."""
    passing = {name for names in streamed.values() for name in names}
    return [name for name in checkpoint.shapes if name not in passing]


def weight_bytes(checkpoint: Checkpoint, resident_blocks: int | None = None, processes: int = 1) -> int:
    """Bytes of weights on the device with that many blocks resident; None: all. Several `processes` divide the blocks
    that are not resident among them."""
    if resident_blocks is None:
        return checkpoint.nbytes
    names = streamed_weights(checkpoint, resident_blocks)
    blocks = [buffer_bytes(checkpoint.entries(each)) for each in names.values()]
    staying = by_key(checkpoint.entries(staying_weights(checkpoint, names)), block_of)
    pieces = [piece_bytes(block, processes) for block in blocks] if processes > 1 else []
    slot = max([*blocks, *(processes * piece for piece in pieces)], default=0)
    return (
        min(SLOTS, len(blocks)) * slot
        + sum(pieces)
        + sum(map(buffer_bytes, staying))
        + change_bytes(checkpoint.changes)
    )


def piece_bytes(block: int, processes: int) -> int:
    """Bytes of a block's buffer of `block` bytes that one of the processes keeps."""
    return -(-block // (processes * ALIGNMENT)) * ALIGNMENT


class _Arrival(Protocol):
    def wait(self) -> Any:
        """Return when a block's weights are in its slot; on a GPU for the work that the stream is given next."""


class _FileBlocks:
    """Blocks that come from the file."""

    def __init__(self, device: torch.device) -> None:
        self._uploader = Uploader(device, SETTINGS)
        self._chunks: dict[int, list[Chunk]] = {}
        self.close = self._uploader.close

    def load(self, blocks: dict[int, tuple[list[Chunk], Tensor, int]]) -> None:
        self._chunks = {index: chunks for index, (chunks, _, _) in blocks.items()}

    def start(self, index: int) -> _Arrival:
        return self._uploader.start(self._chunks[index])


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


class BlockStreamer:
    """Weights of blocks (see `streamed_weights`) as `parameters` on `device`, by name. Each holds its values whenever
    its block of the served model runs. They come from the file, or from the processes of `group`, which keep a piece of
    every block each and call the model together.

    Plain weights keep the file's dtype; the layers cast them. Raises CheckpointError for scales that are not finite."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: dict[int, list[str]],
        device: torch.device,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        self._blocks, self._slots = list(weights), min(SLOTS, len(weights))
        self._in_step = group is not None
        blocks: dict[int, tuple[list[Chunk], Tensor, int]] = {}
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
                targets = targets_in(slot, entries[index])
                blocks[index] = list(chunks_of(entries[index], targets, SETTINGS.chunk_bytes)), slot, sizes[index]
                tensors = {entry.name: tensor_at(targets[entry.name], entry) for entry in entries[index]}
                quantized = {name: checkpoint.quantized[name] for name in names if name in checkpoint.quantized}
                check_finite(checkpoint.name, checkpoint.entries(quantized))
                self.parameters |= {name: frozen_parameter(tensors[name]) for name in names if name not in quantized}
                self.parameters |= quantized_tensors(quantized, tensors, None, device)
            self._source.load(blocks)
        self._in_slot: dict[int, tuple[int, _Arrival]] = {}
        """By slot: the block that is or will be in it, and its arrival."""

    def serve(self, model: LingBotWorldModel) -> None:
        """Upload the first blocks now, and the others while `model` runs. Threads and slots go with the model.

        A forward raises CheckpointError when the file cannot be read any more."""
        model.in_step = self._in_step
        weakref.finalize(model, self._source.close)
        for index in self._blocks:
            model.blocks[index].register_forward_pre_hook(partial(self._before, index))
            model.blocks[index].register_forward_hook(partial(self._after, index))
        for index in self._blocks[: self._slots]:
            self._fill(index)

    def _before(self, index: int, *_: Any) -> None:
        """Wait for the block. Another block is in its slot if the last forward was stopped before its end."""
        block, arrival = self._in_slot[index % self._slots]
        arrival.wait()
        if block != index:
            self._fill(index).wait()

    def _after(self, index: int, *_: Any) -> None:
        """Fill the slot with its next block: the one that this step needs next, else the first of the next step."""
        following = index + self._slots
        if following > self._blocks[-1]:
            following = next(block for block in self._blocks if (block - index) % self._slots == 0)
        if following != index:
            self._fill(following)

    def _fill(self, index: int) -> _Arrival:
        arrival = self._source.start(index)
        self._in_slot[index % self._slots] = index, arrival
        return arrival
