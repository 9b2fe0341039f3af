"""Tensors from files to a device at the speed of the bus: reader threads, each with a few staging buffers.

The wanted byte ranges are cut into chunks in file order. Each thread takes the next chunk, reads it into a buffer that
the device has finished with (pinned memory for CUDA), starts the copies from there and goes on with its other buffer.
The tensors of one block share a device buffer, so that blocks can be freed one by one and the next expert finds room
of the same sizes. They lie there in file order, each at a 256-byte boundary, but for the scales and tables of 4-bit
weights: those lie as close as in the file, and come over in one copy instead of forty.
"""

import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from .entries import TensorEntry
from .lanes import open_lane, started

ALIGNMENT = 256
SMALL = 1 << 16
"""Bytes below which a float32 tensor need not be aligned."""
_BLOCK = re.compile(r"blocks\.\d+\.")
_LAYER = re.compile(r".*?(?=\.weight|\.bias|$)")
# Bytes between two wanted tensors that are read over rather than around.
_GAP = 1 << 16
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class StreamSettings:
    """Host memory used is threads * buffers * chunk_bytes, at most 320 MB by default."""

    threads: int = min(10, os.cpu_count() or 1)
    buffers: int = 2
    chunk_bytes: int = 16 << 20


class Place(NamedTuple):
    """Bytes [start, start + nbytes) of a uint8 device buffer."""

    buffer: Tensor
    start: int
    nbytes: int

    def view(self) -> Tensor:
        return self.buffer.narrow(0, self.start, self.nbytes)


@dataclass
class Chunk:
    """Bytes [start, stop) of a source, and for each piece of them where it goes."""

    source: Path | Tensor
    start: int
    stop: int
    pieces: list[tuple[int, Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of tensors in it, without the gaps."""
        return sum(target.numel() for _, target in self.pieces)


def block_of(name: str) -> str:
    """The block that a tensor belongs to, "" for those of none."""
    block = _BLOCK.match(name)
    return block[0] if block else ""


def layer_of(name: str) -> str:
    """The layer that a tensor belongs to, its weight's scales and tables included."""
    return _LAYER.match(name)[0]


@contextmanager
def streaming(
    entries: list[TensorEntry],
    device: torch.device,
    *,
    group: Callable[[str], str] = block_of,
    progress: Callable[[int, int], None] | None = None,
    settings: StreamSettings | None = None,
) -> Iterator[dict[str, Tensor]]:
    """The tensors by name on `device` while their bytes are still on the way: to be put in their places, not to be
    read. They are complete when the context has ended. Those whose names have one `group` share a device buffer, which
    is freed when the last of them goes.

    `progress(bytes, total)` is called in the calling thread, at the end of the context. Whatever it or the context's
    body raises, Ctrl-C, or a reader's error (CheckpointError for a file that ends early, OSError) stops all threads
    before it is raised.
    """
    settings = settings or StreamSettings()
    places = _allocate(_groups(entries, group), device)
    chunks = chunks_of(entries, places, settings.chunk_bytes)
    with _moving(chunks, sum(entry.nbytes for entry in entries), device, settings, progress):
        yield {entry.name: typed(places[entry.name], entry) for entry in entries}


def stream_tensors(entries: list[TensorEntry], device: torch.device, **options) -> dict[str, Tensor]:
    """As `streaming`, complete when this returns."""
    with streaming(entries, device, **options) as tensors:
        return tensors


def typed(place: Place, entry: TensorEntry) -> Tensor:
    """The bytes at `place` as the entry's tensor."""
    values = place.view()
    values = values if entry.dtype == torch.uint8 else values.view(entry.dtype)
    return values if len(entry.shape) == 1 else values.view(entry.shape)


def _allocate(groups: list[list[TensorEntry]], device: torch.device) -> dict[str, Place]:
    places = {}
    with torch.inference_mode(False):  # an inference tensor could not be written by the threads
        for group in groups:
            places |= places_in(torch.empty(buffer_bytes(group), dtype=torch.uint8, device=device), group)
    return places


def device_bytes(entries: list[TensorEntry]) -> int:
    """Bytes that `streaming` takes for them on the device."""
    return sum(map(buffer_bytes, _groups(entries, block_of)))


def _groups(entries: list[TensorEntry], group: Callable[[str], str]) -> list[list[TensorEntry]]:
    """What shares a buffer."""
    groups: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        groups.setdefault(group(entry.name), []).append(entry)
    return list(groups.values())


def buffer_bytes(entries: list[TensorEntry]) -> int:
    """Bytes of a buffer for all entries."""
    return _layout(entries)[1]


def places_in(buffer: Tensor, entries: list[TensorEntry]) -> dict[str, Place]:
    """Each entry's place in the uint8 buffer, by name."""
    return {entry.name: Place(buffer, start, entry.nbytes) for entry, start in _layout(entries)[0]}


def _layout(entries: list[TensorEntry]) -> tuple[list[tuple[TensorEntry, int]], int]:
    """Entries in file order with where each starts, and the bytes of them all."""
    starts, end = [], 0
    for entry in _in_file_order(entries):
        alignment = 4 if entry.dtype == torch.float32 and entry.nbytes < SMALL else ALIGNMENT
        start = -(-end // alignment) * alignment
        starts.append((entry, start))
        end = start + entry.nbytes
    return starts, -(-end // ALIGNMENT) * ALIGNMENT


def _in_file_order(entries: list[TensorEntry]) -> list[TensorEntry]:
    return sorted(entries, key=lambda entry: (str(entry.path), entry.offset))


def chunks_of(entries: list[TensorEntry], places: dict[str, Place], size: int) -> Iterator[Chunk]:
    """Chunks of at most `size` bytes that cover every tensor, in file order; neighbours in the file that are neighbours
    in their buffer make one piece."""
    source, start, stop, pieces = None, 0, 0, []
    for entry in _in_file_order(entries):
        mapped = isinstance(entry.source, Tensor)
        origin = entry.source.view(-1).view(torch.uint8) if mapped else entry.path
        done = 0
        while done < entry.nbytes:
            begin = entry.offset + done
            near = source is origin and 0 <= begin - stop <= _GAP and begin < start + size
            if not near or mapped:
                if pieces:
                    yield _chunk(source, start, stop, pieces)
                source, start, stop, pieces = origin, begin, begin, []
            count = min(entry.nbytes - done, start + size - begin)
            buffer, at, _ = places[entry.name]
            _add(pieces, begin - start, Place(buffer, at + done, count))
            stop = begin + count
            done += count
    if pieces:
        yield _chunk(source, start, stop, pieces)


def _add(pieces: list[tuple[int, Place]], start: int, place: Place) -> None:
    """Append a piece, or lengthen the last one by it."""
    if pieces:
        begin, last = pieces[-1]
        if begin + last.nbytes == start and last.buffer is place.buffer and last.start + last.nbytes == place.start:
            pieces[-1] = begin, last._replace(nbytes=last.nbytes + place.nbytes)
            return
    pieces.append((start, place))


def _chunk(source: Path | Tensor, start: int, stop: int, pieces: list[tuple[int, Place]]) -> Chunk:
    return Chunk(source, start, stop, [(begin, place.view()) for begin, place in pieces])


@contextmanager
def _moving(work: Iterator[Chunk], total: int, device: torch.device, settings: StreamSettings, progress):
    """Threads carry `work`, `total` bytes of it, while the body runs; at the end it is waited for."""
    reports, stop = queue.SimpleQueue(), threading.Event()
    lock, start = threading.Lock(), started(device)
    threads = [
        threading.Thread(target=_carry, args=(work, lock, reports, stop, device, start, settings), daemon=True)
        for _ in range(max(1, min(settings.threads, -(-total // settings.chunk_bytes))))
    ]
    try:
        for thread in threads:
            thread.start()
        yield
        done = 0
        while done < total:
            done += _next_report(reports)
            if progress:
                progress(done, total)
    finally:
        stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _next_report(reports: queue.SimpleQueue) -> int:
    """Bytes moved since the last report; 0 now and then, so that Ctrl-C is noticed on every system."""
    try:
        report = reports.get(timeout=_POLL_SECONDS)
    except queue.Empty:
        return 0
    if isinstance(report, BaseException):
        raise report
    return report


def _carry(work: Iterator[Chunk], lock, reports, stop, device, start, settings: StreamSettings) -> None:
    """A thread's life: chunks from `work` to the device until there is none, or `stop` is set."""
    try:
        with FileReader() as reader, open_lane(device, start, settings.buffers, settings.chunk_bytes) as lane:
            while not stop.is_set():
                with lock:
                    chunk = next(work, None)
                if chunk is None:
                    break
                buffer = lane.free_buffer()
                reader.read(chunk, buffer)
                lane.send(buffer, chunk.pieces)
                reports.put(chunk.nbytes)
    except BaseException as error:
        reports.put(error)


class FileReader:
    """Reads chunks through its own file handles, with nothing that only some systems have: seek and readinto release
    the interpreter lock, and a handle of its own for each thread needs no locking."""

    def __init__(self):
        self._files = {}

    def __enter__(self) -> "FileReader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def read(self, chunk: Chunk, buffer: Tensor) -> None:
        """Fill the start of `buffer` (uint8, host) with the chunk's bytes. Raises CheckpointError at an early end."""
        count = chunk.stop - chunk.start
        if isinstance(chunk.source, Tensor):
            np.copyto(buffer.numpy()[:count], chunk.source[chunk.start : chunk.stop].numpy())
            return
        if chunk.source not in self._files:
            self._files[chunk.source] = chunk.source.open("rb", buffering=0)
        file, rest = self._files[chunk.source], memoryview(buffer.numpy())[:count]
        file.seek(chunk.start)
        while rest:
            got = file.readinto(rest)
            if not got:
                size = os.fstat(file.fileno()).st_size
                raise CheckpointError(f"{chunk.source.name}: ends at byte {size:,} while it is being read, "
                                      f"expected {chunk.stop:,}; it changed or is truncated")  # fmt: skip
            rest = rest[got:]
