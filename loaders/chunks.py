"""The layout of tensors in device buffers, and the chunks of files that are copied there."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..weights.tensors import MappedFile, TensorEntry, in_file_order

ALIGNMENT = 256
SMALL = 1 << 16
"""The size in bytes below which a float32 tensor is aligned to 4 bytes in a device buffer, instead of 256."""
_JOINT = [f".self_attn.{layer}.{kind}" for kind in ("weight", "bias") for layer in "qkv"]
"""The name suffixes of q, k and v, which are adjacent in the buffer so that one product computes all."""
_BLOCK = re.compile(r"blocks\.\d+\.")
_AFTER_LAYER = re.compile(r"\.(weight|bias).*")
# The maximum gap between two tensors that one read covers: reading the gap is cheaper than another read.
_GAP = 1 << 16


def block_of(name: str) -> str:
    """Return the prefix of a tensor's transformer block, such as `blocks.0.`, or "" for a tensor of no block."""
    block = _BLOCK.match(name)
    return block[0] if block else ""


def layer_of(name: str) -> str:
    """Return the name of a tensor's layer, such as `blocks.0.ffn.0` for `blocks.0.ffn.0.weight.absmax`."""
    return _AFTER_LAYER.sub("", name)


class BufferRange(NamedTuple):
    """The bytes [start, start + nbytes) of a uint8 device buffer, as the target of a copy.

    rounded: the dtypes in the file and in the buffer if the copy rounds; None if the bytes stay unchanged.
    """

    buffer: Tensor
    start: int
    nbytes: int
    rounded: tuple[torch.dtype, torch.dtype] | None = None

    @property
    def file_bytes(self) -> int:
        return self.in_file(self.nbytes)

    def in_file(self, nbytes: int) -> int:
        """Return how many file bytes fill `nbytes` bytes of the buffer: more if the copy converts to a smaller
        dtype."""
        return nbytes if self.rounded is None else nbytes // self.rounded[1].itemsize * self.rounded[0].itemsize

    def view(self) -> Tensor:
        return self.buffer.narrow(0, self.start, self.nbytes)

    def fill(self, staged: Tensor, start: int, non_blocking: bool = False) -> None:
        """Fill this range of a device buffer from `staged` (uint8, host memory), beginning at byte `start` of `staged`.
        Convert the values if the dtypes of file and buffer differ."""
        values, target = staged[start : start + self.file_bytes], self.view()
        if self.rounded is not None:
            values, target = values.view(self.rounded[0]), target.view(self.rounded[1])
        target.copy_(values, non_blocking=non_blocking)


@dataclass
class FileChunk:
    """The bytes [start, stop) of a file or of a tensor in memory, and the device ranges to fill with them.

    copies: pairs (offset from `start` in bytes, range to fill).
    """

    source: MappedFile | Tensor
    start: int
    stop: int
    copies: list[tuple[int, BufferRange]]

    @property
    def nbytes(self) -> int:
        """The number of buffer bytes that the chunk fills, not counting alignment gaps."""
        return sum(target.nbytes for _, target in self.copies)


def group_by_key(entries: Iterable[TensorEntry], key: Callable[[str], str]) -> list[list[TensorEntry]]:
    lists: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        lists.setdefault(key(entry.name), []).append(entry)
    return list(lists.values())


def buffer_bytes(entries: list[TensorEntry]) -> int:
    return _layout(entries)[1]


def ranges_in(buffer: Tensor, entries: list[TensorEntry]) -> dict[str, BufferRange]:
    """Return the range of each entry in the uint8 `buffer`, by name."""
    targets = {}
    for entry, start in _layout(entries)[0]:
        rounded = None if entry.stored is None else (entry.stored, entry.dtype)
        targets[entry.name] = BufferRange(buffer, start, entry.nbytes, rounded)
    return targets


def allocate_buffers(
    entries: list[TensorEntry], device: torch.device, buffer_key: Callable[[str], str]
) -> dict[str, BufferRange]:
    """Allocate device buffers, one for each value of `buffer_key(name)`, and return each entry's range by name."""
    targets: dict[str, BufferRange] = {}
    with torch.inference_mode(False):  # the reader threads could not write to an inference tensor
        for together in group_by_key(entries, buffer_key):
            targets |= ranges_in(torch.empty(buffer_bytes(together), dtype=torch.uint8, device=device), together)
    return targets


def tensor_at(target: BufferRange, entry: TensorEntry) -> Tensor:
    """Return a view of the device memory `target` with the dtype and shape of `entry`."""
    values = target.view()
    values = values if entry.dtype == torch.uint8 else values.view(entry.dtype)
    return values if len(entry.shape) == 1 else values.view(entry.shape)


def _layout(entries: list[TensorEntry]) -> tuple[list[tuple[TensorEntry, int]], int]:
    """Return each entry with its offset in a buffer, and the buffer's size. Entries of q, k and v come first."""
    starts, end = [], 0
    for entry in sorted(in_file_order(entries), key=_joint_first):
        alignment = 4 if entry.dtype == torch.float32 and entry.nbytes < SMALL else ALIGNMENT
        start = -(-end // alignment) * alignment
        starts.append((entry, start))
        end = start + entry.nbytes
    return starts, -(-end // ALIGNMENT) * ALIGNMENT


def _joint_first(entry: TensorEntry) -> tuple[str, int]:
    found = [number for number, name in enumerate(_JOINT) if entry.name.endswith(name)]
    return (f"block {block_of(entry.name)}", found[0]) if found else ("others", 0)


def split_into_chunks(entries: list[TensorEntry], targets: dict[str, BufferRange], size: int) -> Iterator[FileChunk]:
    """Yield chunks of at most `size` bytes that cover the entries. `targets` has each entry's range by name."""
    chunk: FileChunk | None = None
    for entry in in_file_order(entries):
        source = entry.source.view(-1).view(torch.uint8) if isinstance(entry.source, Tensor) else entry.source
        target = targets[entry.name]
        item, kept = (1, 1) if entry.stored is None else (entry.stored.itemsize, entry.dtype.itemsize)
        done = 0
        while done < entry.file_bytes:
            begin = entry.offset + done
            at = 0 if chunk is None else begin - chunk.start
            near = chunk is not None and chunk.source is source and 0 <= begin - chunk.stop <= _GAP
            if chunk is None or not near or at + item > size or at % item:  # no value is split between chunks
                if chunk is not None:
                    yield chunk
                chunk = FileChunk(source, begin, begin, [])
            count = min(entry.file_bytes - done, chunk.start + size - begin) // item * item
            start, nbytes = (part // item * kept for part in (done, count))
            _append_copy(chunk.copies, begin - chunk.start, target._replace(start=target.start + start, nbytes=nbytes))
            chunk.stop = begin + count
            done += count
    if chunk is not None:
        yield chunk


def piece_chunks(chunks: Iterable[FileChunk], first: int, piece: Tensor) -> Iterator[FileChunk]:
    """Limit `chunks`, which fill a whole device buffer, to the bytes of one piece of that buffer. The piece begins at
    the buffer's byte `first`. Its bytes are copied to `piece`, a separate uint8 tensor."""
    for chunk in chunks:
        copies: list[tuple[int, BufferRange]] = []
        for begin, target in chunk.copies:
            low, high = max(target.start, first), min(target.start + target.nbytes, first + len(piece))
            if low < high:
                skipped = target.in_file(low - target.start)
                copies.append((begin + skipped, BufferRange(piece, low - first, high - low, target.rounded)))
        if copies:
            skipped, (last, target) = copies[0][0], copies[-1]
            moved = [(begin - skipped, each) for begin, each in copies]
            yield FileChunk(chunk.source, chunk.start + skipped, chunk.start + last + target.file_bytes, moved)


def _append_copy(copies: list[tuple[int, BufferRange]], offset: int, target: BufferRange) -> None:
    """Append a copy from byte `offset` of a file chunk to `target`. Extend the last copy instead if the new one
    continues it in the chunk and in the buffer."""
    if copies:
        begin, last = copies[-1]
        adjacent = begin + last.file_bytes == offset and last.start + last.nbytes == target.start
        if adjacent and last.buffer is target.buffer and last.rounded == target.rounded:
            copies[-1] = begin, last._replace(nbytes=last.nbytes + target.nbytes)
            return
    copies.append((offset, target))
