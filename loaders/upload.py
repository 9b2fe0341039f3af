"""Uploads that go on beside other work, by reader threads with lanes of their own."""

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy as duplicate
from queue import SimpleQueue

import torch

from .lanes import new_lane, started
from .stream import Chunk, FileReader, StreamSettings

_THREADS = "lingbot-upload"
_POLL_SECONDS = 0.2


class Uploader:
    """Threads that read chunks and copy them to `device`, in the order in which they are given."""

    def __init__(self, device: torch.device, settings: StreamSettings):
        self._device = device
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix=_THREADS)
        self._idle: SimpleQueue = SimpleQueue()
        self._pairs = [
            (FileReader(), new_lane(device, started(device), settings.buffers, settings.chunk_bytes))
            for _ in range(settings.threads)
        ]
        for pair in self._pairs:
            self._idle.put(pair)

    def __enter__(self) -> "Uploader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def start(self, chunks: Iterable[Chunk]) -> "Upload":
        """Begin to copy the chunks, none larger than the settings say. Their targets are written to once the work that
        the caller's CUDA stream holds by now is done."""
        after = started(self._device)
        return Upload([self._pool.submit(_carry, self._idle, chunk, after) for chunk in chunks], self._device)

    def close(self) -> None:
        """Give up what is not begun, wait for the rest, end the threads. Pinned memory goes with this object."""
        if threading.current_thread().name.startswith(_THREADS):
            # The garbage collector runs in any thread, in one of those that are waited for here too.
            threading.Thread(target=self.close).start()
            return
        self._pool.shutdown(wait=True, cancel_futures=True)
        for reader, lane in self._pairs:
            reader.close()
            lane.finish()


class Upload:
    """Chunks on their way."""

    def __init__(self, copies: list[Future], device: torch.device):
        self._copies, self._device = copies, device

    def wait(self) -> None:
        """Return when what the caller's CUDA stream is given from now on finds every chunk in its place.

        Raises what a reader raised (CheckpointError for a file that ends early, OSError), each time it is called."""
        for copy in self._copies:
            while not copy.done():  # in turns, so that Ctrl-C is noticed on every system
                wait([copy], _POLL_SECONDS)
            error = copy.exception()
            if error is not None:
                raise duplicate(error)  # the original would hold on to all that it passes through, as long as we are
            sent = copy.result()
            if sent is not None:
                torch.cuda.current_stream(self._device).wait_event(sent)
        self._copies = []


def _carry(idle: SimpleQueue, chunk: Chunk, after: torch.cuda.Event | None) -> torch.cuda.Event | None:
    reader, lane = pair = idle.get()
    try:
        buffer = lane.free_buffer()
        reader.read(chunk, buffer)
        return lane.send(buffer, chunk.pieces, after)
    finally:
        idle.put(pair)
