"""Decoding in parallel on a CPU: a chunk's frames are decoded during the next chunk's forwards, and each thread gets
part of the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident

import torch

from .frames import Frames


class DecodingThread:
    """A thread that decodes and delivers the frames of one chunk while the next one is generated.

    The toy's layers are small: a second core helps them less than a core of their own. The thread that generates the
    chunks creates and calls this object; it keeps the cores that the decoder does not use."""

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
        """Return whether the caller runs in this thread."""
        return get_ident() == self._ident

    @classmethod
    def where_it_gains(cls, device: torch.device) -> DecodingThread | None:
        """Return a new thread for models on a CPU with more than one core, else None. A GPU already decodes
        asynchronously."""
        return cls() if device.type == "cpu" and torch.get_num_threads() > 1 else None

    def hand_out(self, frames: Iterator[Frames], deliver: Callable[[Frames], None]) -> None:
        """Decode the `frames` in the thread and call `deliver` with each. This first waits until the previous chunk is
        delivered, and raises the error of that delivery."""

        def run() -> None:
            for each in frames:
                deliver(each)

        self.wait()
        self._running = self._pool.submit(run)

    def wait(self) -> None:
        """Wait until all frames are delivered. Raises the error of the delivery."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the last frames, then return all cores to the caller."""
        self._pool.shutdown()
        torch.set_num_threads(self._cores)
