"""Tensors from files to a device at the speed of the bus: reader threads, each with a few staging buffers.

The wanted byte ranges are cut into chunks in file order. Each thread takes the next chunk, reads it into a buffer that
the device has finished with (pinned memory for CUDA), starts the copies from there and goes on with its other buffer.
Every tensor lands at a 256-byte boundary of a device buffer; the tensors of one block share a buffer, so that blocks
can be freed one by one and the next expert finds room of the same sizes.
"""

import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from .entries import TensorEntry
from .lanes import open_lane, started

ALIGNMENT = 256
_BLOCK = re.compile(r"blocks\.\d+\.")
# Bytes between two wanted tensors that are read over rather than around.
_GAP = 1 << 16
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class StreamSettings:
    """Host memory used is threads * buffers * chunk_bytes, at most 320 MB by default."""

    threads: int = min(10, os.cpu_count() or 1)
    buffers: int = 2
    chunk_bytes: int = 16 << 20


@dataclass
class Chunk:
    """Bytes [start, stop) of a source, and for each piece of them where it goes."""

    source: Path | Tensor
    start: int
    stop: int
    pieces: list[tuple[int, Tensor]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of tensors in it, without the gaps."""
        return sum(target.numel() for _, target in self.pieces)


@contextmanager
def streaming(
    entries: list[TensorEntry],
    device: torch.device,
    *,
    progress: Callable[[int, int], None] | None = None,
    settings: StreamSettings | None = None,
) -> Iterator[dict[str, Tensor]]:
    """The tensors by name on `device` while their bytes are still on the way: to be put in their places, not to be
    read. They are complete when the context has ended.

    `progress(bytes, total)` is called in the calling thread, at the end of the context. Whatever it or the context's
    body raises, Ctrl-C, or a reader's error (CheckpointError for a file that ends early, OSError) stops all threads
    before it is raised.
    """
    settings = settings or StreamSettings()
    targets = _allocate(entries, device)
    chunks = chunks_of(entries, targets, settings.chunk_bytes)
    with _moving(chunks, sum(entry.nbytes for entry in entries), device, settings, progress):
        yield {entry.name: typed(targets[entry.name], entry) for entry in entries}


def stream_tensors(entries: list[TensorEntry], device: torch.device, **options) -> dict[str, Tensor]:
    """As `streaming`, complete when this returns."""
    with streaming(entries, device, **options) as tensors:
        return tensors


def typed(target: Tensor, entry: TensorEntry) -> Tensor:
    """The bytes `target` as the entry's tensor."""
    return target.view(entry.dtype).view(entry.shape)


def _allocate(entries: list[TensorEntry], device: torch.device) -> dict[str, Tensor]:
    """A uint8 slice of a device buffer for each tensor; one buffer a block, one for what is in no block."""
    groups: dict[str, list[TensorEntry]] = {}
    for entry in entries:
        block = _BLOCK.match(entry.name)
        groups.setdefault(block[0] if block else "", []).append(entry)
    targets = {}
    with torch.inference_mode(False):  # an inference tensor could not be written by the threads
        for group in groups.values():
            targets |= slices(group, torch.empty(buffer_bytes(group), dtype=torch.uint8, device=device))
    return targets


def buffer_bytes(entries: list[TensorEntry]) -> int:
    """Bytes of a buffer for all entries, each at a 256-byte boundary."""
    return sum(-(-entry.nbytes // ALIGNMENT) * ALIGNMENT for entry in entries)


def slices(entries: list[TensorEntry], buffer: Tensor) -> dict[str, Tensor]:
    """Each entry's place in the uint8 buffer, by name."""
    places, start = {}, 0
    for entry in entries:
        places[entry.name] = buffer.narrow(0, start, entry.nbytes)
        start += buffer_bytes([entry])
    return places


def chunks_of(entries: list[TensorEntry], targets: dict[str, Tensor], size: int) -> Iterator[Chunk]:
    """Chunks of at most `size` bytes that cover every tensor, in file order."""
    chunk = None
    for entry in sorted(entries, key=lambda entry: (str(entry.path), entry.offset)):
        mapped = isinstance(entry.source, Tensor)
        source = entry.source.view(-1).view(torch.uint8) if mapped else entry.path
        done = 0
        while done < entry.nbytes:
            start = entry.offset + done
            if chunk is None or mapped or not _continues(chunk, source, start, size):
                if chunk is not None:
                    yield chunk
                chunk = Chunk(source, start, start)
            count = min(entry.nbytes - done, chunk.start + size - start)
            chunk.pieces.append((start - chunk.start, targets[entry.name].narrow(0, done, count)))
            chunk.stop = start + count
            done += count
    if chunk is not None:
        yield chunk


def _continues(chunk: Chunk, source: Path | Tensor, start: int, size: int) -> bool:
    return chunk.source is source and 0 <= start - chunk.stop <= _GAP and start < chunk.start + size


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
            buffer[:count].copy_(chunk.source[chunk.start : chunk.stop])
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
