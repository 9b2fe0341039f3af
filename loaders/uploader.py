"""Uploads: copies from files to a device by several threads, through staging buffers and CUDA streams."""

import io
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from ..options import Progress
from ..weights.tensors import MappedFile, TensorEntry, read_into
from .chunks import FileChunk, allocate_buffers, block_of, split_into_chunks, tensor_at

_THREAD_NAME = "lingbot-upload"
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class UploadSettings:
    """The settings of copies from files to a device by several threads.

    buffers: the number of pinned staging buffers per thread for CUDA.
    sleep: whether a waiting thread sleeps instead of spinning, for copies during a forward.
    """

    threads: int = min(10, os.cpu_count() or 1)
    buffers: int = 2
    chunk_bytes: int = 16 << 20
    sleep: bool = False


class Uploader(AbstractContextManager["Uploader"]):
    """A pool of threads that copies file contents to one device, in the order of the calls of `upload` and `start`."""

    def __init__(self, device: torch.device, settings: UploadSettings | None = None) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())  # reader threads have their own current device
        self.device, self.settings = device, settings or UploadSettings()
        self._threads = ThreadPoolExecutor(self.settings.threads, thread_name_prefix=_THREAD_NAME)
        self._idle: list[ChunkReader] = []
        self._closing = threading.Event()

    def __exit__(self, *_: object) -> None:
        self.close()

    def upload(
        self, entries: list[TensorEntry], buffer_key: Callable[[str], str] = block_of
    ) -> tuple[dict[str, Tensor], "Upload"]:
        """Start to copy the entries into new device memory. Return the tensors by name, and the Upload to wait for.
        `buffer_key` is as in `allocate_buffers`."""
        targets = allocate_buffers(entries, self.device, buffer_key)
        chunks = split_into_chunks(entries, targets, self.settings.chunk_bytes)
        upload = self.start(chunks, sum(entry.nbytes for entry in entries))
        return {entry.name: tensor_at(targets[entry.name], entry) for entry in entries}, upload

    def start(self, chunks: Iterable[FileChunk], total: int = 0) -> "Upload":
        """Start to copy chunks to the device. On CUDA, copies wait for the kernels already queued on the current
        stream. `total` is the total number of bytes that progress callbacks report."""
        queue = _ChunkQueue(chunks, self.device, self._closing)
        readers = [self._threads.submit(self._copy_chunks, queue) for _ in range(self.settings.threads)]
        return Upload(queue, readers, self.device, total)

    def _copy_chunks(self, queue: "_ChunkQueue") -> torch.cuda.Event | None:
        reader, sent = None, None
        try:
            while (chunk := queue.take()) is not None:
                if reader is None:
                    kind = CudaChunkReader if self.device.type == "cuda" else ChunkReader
                    try:
                        reader = self._idle.pop()
                    except IndexError:
                        reader = kind(self.device, self.settings)
                    if isinstance(reader, CudaChunkReader) and queue.start_event is not None:
                        reader.wait_for(queue.start_event)
                sent = reader.copy_chunk(chunk)
                queue.add_bytes(chunk.nbytes)
        except BaseException:
            queue.stop()
            raise
        finally:
            if reader is not None:
                self._idle.append(reader)
        return sent

    def close(self) -> None:
        """Drop all unread chunks, wait for the running copies, and end the threads."""
        self._closing.set()
        if threading.current_thread().name.startswith(_THREAD_NAME):
            # The garbage collector runs in any thread. In a reader thread this would wait for itself.
            threading.Thread(target=self.close).start()
            return
        self._threads.shutdown(wait=True, cancel_futures=True)
        while self._idle:
            self._idle.pop().close()


class Upload:
    """A running copy of file contents to a device. Call `wait` before use."""

    def __init__(self, queue: "_ChunkQueue", readers: list[Future], device: torch.device, total: int) -> None:
        self._queue, self._readers, self._device, self._total = queue, readers, device, total

    def wait(self, progress: Progress | None = None) -> None:
        """Block until the copies are done. On CUDA block until they are queued, and make the current stream wait for
        them. Raise a reader thread's error."""
        waiting = set(self._readers)
        while waiting:  # short waits, so that Ctrl-C works on every system
            done, waiting = wait(waiting, _POLL_SECONDS, return_when="FIRST_EXCEPTION")
            for reader in done:
                error = reader.exception()
                if error is not None:
                    # A copy: an exception that was raised holds every frame that it passed through, and so the model.
                    raise copy(error)
                if reader.result() is not None:
                    torch.cuda.current_stream(self._device).wait_event(reader.result())
            if progress:
                progress(self._queue.bytes, self._total)
        self._readers = []


class _ChunkQueue:
    def __init__(self, chunks: Iterable[FileChunk], device: torch.device, closing: threading.Event) -> None:
        self._chunks, self._lock, self._closing = iter(chunks), threading.Lock(), closing
        self.bytes = 0
        """The number of bytes copied so far."""
        self.start_event = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        """The CUDA event after which the device may write to the target buffers; None without CUDA."""

    def take(self) -> FileChunk | None:
        with self._lock:
            return None if self._closing.is_set() else next(self._chunks, None)

    def add_bytes(self, nbytes: int) -> None:
        with self._lock:
            self.bytes += nbytes

    def stop(self) -> None:
        with self._lock:
            self._chunks = iter(())


class ChunkReader:
    """A reader of file chunks for one thread and devices other than CUDA, with its open files and staging buffer."""

    def __init__(self, _device: torch.device, settings: UploadSettings) -> None:
        self._files: dict[MappedFile, io.FileIO] = {}
        self._buffer = torch.empty(settings.chunk_bytes, dtype=torch.uint8)

    def copy_chunk(self, chunk: FileChunk) -> torch.cuda.Event | None:
        """Copy a chunk from its file to its device buffers. On CUDA, return an event that marks the copy's end, else
        None. Raise CheckpointError if reading fails."""
        self.read(chunk, self._buffer)
        for start, target in chunk.copies:
            target.fill(self._buffer, start)
        return None

    def read(self, chunk: FileChunk, buffer: Tensor) -> None:
        """Read the chunk's bytes into the start of `buffer` (uint8, host memory)."""
        nbytes = chunk.stop - chunk.start
        if isinstance(chunk.source, Tensor):
            np.copyto(buffer.numpy()[:nbytes], chunk.source[chunk.start : chunk.stop].numpy())
            return
        if chunk.source not in self._files:
            self._files[chunk.source] = chunk.source.open()
        file, rest = self._files[chunk.source], buffer.numpy().data[:nbytes]
        file.seek(chunk.start)
        while rest:
            rest = rest[read_into(chunk.source.path, file, rest) :]

    def close(self) -> None:
        """Wait for the running copies, and close the files."""
        for file in self._files.values():
            file.close()


class CudaChunkReader(ChunkReader):
    """A reader of file chunks for one thread, with pinned staging buffers and a CUDA stream for copies to the GPU."""

    def __init__(self, device: torch.device, settings: UploadSettings) -> None:
        self._files = {}
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)
            self._buffers = [
                torch.empty(settings.chunk_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(settings.buffers)
            ]
        self._sent: dict[int, torch.cuda.Event] = {}
        self._sleep = settings.sleep
        self._turns = count()

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Make the next copies wait for `event` on the GPU."""
        self._stream.wait_event(event)

    def copy_chunk(self, chunk: FileChunk) -> torch.cuda.Event:
        turn = next(self._turns) % len(self._buffers)
        if turn in self._sent:
            self._sent[turn].synchronize()
        buffer = self._buffers[turn]
        self.read(chunk, buffer)
        with torch.cuda.stream(self._stream):
            for start, target in chunk.copies:
                target.fill(buffer, start, non_blocking=True)
            sent = self._sent[turn] = torch.cuda.Event(blocking=self._sleep)
            sent.record(self._stream)
        return sent

    def close(self) -> None:
        self._stream.synchronize()
        super().close()
