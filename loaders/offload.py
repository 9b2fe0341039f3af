"""An expert that is larger than the GPU: the weights of its last blocks pass through a few device buffers, the slots.

A block's parameters are views of one slot for good, so that the model is an ordinary one. When a block has run, its
slot is filled with the next block that lives there; behind the last block come the first ones again, for the next step.
Reading and copying stay hidden while a block takes longer to compute than its bytes take to come.
"""

import os
import weakref
from functools import partial

import torch
from torch import Tensor

from ..model.dit import LingBotWorldModel
from .checkpoint import Checkpoint
from .four_bit import check_finite, four_bit_tensors
from .nf4 import frozen_parameter
from .stream import Chunk, StreamSettings, buffer_bytes, chunks_of, device_bytes, places_in, typed
from .upload import Upload, Uploader

SLOTS = 2
SETTINGS = StreamSettings(threads=min(4, os.cpu_count() or 1))
"""At most 128 MB of pinned memory."""


def streamed_weights(checkpoint: Checkpoint, resident_blocks: int | None) -> dict[int, list[str]]:
    """Block to names of its linear weights, for the blocks after the first `resident_blocks`; None: all are resident.

    The rest of a block (biases, norms, modulation: 0.3 MB of 235) always stays."""
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
    moving = {name for names in streamed.values() for name in names}
    return [name for name in checkpoint.shapes if name not in moving]


def weight_bytes(checkpoint: Checkpoint, resident_blocks: int | None = None) -> int:
    """Bytes of weights on the device with that many blocks resident; None: all."""
    if resident_blocks is None:
        return checkpoint.nbytes
    blocks = streamed_weights(checkpoint, resident_blocks)
    largest = max((buffer_bytes(checkpoint.entries(names)) for names in blocks.values()), default=0)
    staying = checkpoint.entries(staying_weights(checkpoint, blocks))
    return min(SLOTS, len(blocks)) * largest + device_bytes(staying)


class BlockStreamer:
    """Weights of blocks (see `streamed_weights`) as `parameters` on `device`, by name: they hold their values whenever
    their block of the model that is served runs.

    Plain weights keep the file's dtype; the layers cast what they use. Raises CheckpointError for scales that are not
    finite."""

    def __init__(self, checkpoint: Checkpoint, weights: dict[int, list[str]], device: torch.device, dtype: torch.dtype):
        self._blocks, self._slots = list(weights), min(SLOTS, len(weights))
        self._chunks: dict[int, list[Chunk]] = {}
        self.parameters: dict[str, Tensor] = {}
        entries = {index: checkpoint.entries(names) for index, names in weights.items()}
        size = max(map(buffer_bytes, entries.values()))
        with torch.inference_mode(False), torch.no_grad():  # ordinary tensors: other threads write to them
            slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(self._slots)]
            self._device = slots[0].device  # with its index
            for index, names in weights.items():
                places = places_in(slots[index % self._slots], entries[index])
                self._chunks[index] = list(chunks_of(entries[index], places, SETTINGS.chunk_bytes))
                tensors = {entry.name: typed(places[entry.name], entry) for entry in entries[index]}
                self.parameters |= _parameters(checkpoint, names, tensors, dtype, device)

    def serve(self, model: LingBotWorldModel) -> None:
        """Start to bring the first blocks, and see to the others whenever `model` runs. Threads and slots go with it.

        A forward raises CheckpointError or OSError when the file cannot be read any more."""
        self._uploader = Uploader(self._device, SETTINGS)
        weakref.finalize(model, self._uploader.close)
        self._held: dict[int, tuple[int, Upload]] = {}
        for index in self._blocks:
            model.blocks[index].register_forward_pre_hook(partial(self._before, index))
            model.blocks[index].register_forward_hook(partial(self._after, index))
        for index in self._blocks[: self._slots]:
            self._fill(index)

    def _before(self, index: int, *_) -> None:
        """Wait for the block. It is another's turn where the forward before ended early."""
        held, upload = self._held[index % self._slots]
        upload.wait()
        if held != index:
            self._fill(index).wait()

    def _after(self, index: int, *_) -> None:
        """Fill the slot with the next block that lives there, of the next step behind the last one."""
        following = index + self._slots
        if following > self._blocks[-1]:
            following = next(block for block in self._blocks if (block - index) % self._slots == 0)
        if following != index:
            self._fill(following)

    def _fill(self, index: int) -> Upload:
        upload = self._uploader.start(self._chunks[index])
        self._held[index % self._slots] = index, upload
        return upload


def _parameters(checkpoint: Checkpoint, names, tensors: dict[str, Tensor], dtype, device) -> dict[str, Tensor]:
    four_bit = {name: checkpoint.four_bit[name] for name in names if name in checkpoint.four_bit}
    check_finite(checkpoint.name, four_bit.values())
    plain = {name: frozen_parameter(tensors[name]) for name in names if name not in four_bit}
    return plain | four_bit_tensors(four_bit, tensors, dtype, device)
