"""Decoding in a thread on a CPU: a chunk's frames are decoded during the next chunk's forwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident

import torch

from .frames import Frames


class DecodingThread:
    """A thread that decodes and delivers the frames of one chunk while the next one is made. It gets half of the cores;
    the thread that creates and calls this object keeps the others. For small layers, such as the toy's, two threads are
    faster than one with all cores."""

    def __init__(self) -> None:
        self._cores = torch.get_num_threads()
        own = max(1, self._cores // 2)
        self._ident = 0
        self._pool = ThreadPoolExecutor(1, "lingbot-decoding", self._begin, (own,))
        self._running: Future[None] | None = None
        torch.set_num_threads(max(1, self._cores - own))

    def _begin(self, cores: int) -> None:
        self._ident = get_ident()
        torch.set_num_threads(cores)

    @property
    def here(self) -> bool:
        """Whether the caller runs in this thread."""
        return get_ident() == self._ident

    @classmethod
    def where_it_gains(cls, device: torch.device) -> DecodingThread | None:
        """Return a new thread for a model on a CPU with more than one core; None otherwise, because a GPU works
        asynchronously."""
        return cls() if device.type == "cpu" and torch.get_num_threads() > 1 else None

    def hand_out(self, frames: Iterator[Frames], deliver: Callable[[Frames], None]) -> None:
        """Iterate over `frames` in the thread and call `deliver` with each. First wait until the previous chunk is
        delivered. Raises the error of that delivery."""

        def run() -> None:
            for each in frames:
                deliver(each)

        self.wait()
        self._running = self._pool.submit(run)

    def wait(self) -> None:
        """Wait until all frames are delivered. Raises the error of their delivery."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the last frames, end the thread, and give all cores to the caller."""
        self._pool.shutdown()
        torch.set_num_threads(self._cores)
