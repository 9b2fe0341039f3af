"""A thread for decoding on a CPU, in parallel with the model's next chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident

import torch

from .frames import Frames


class DecodingThread:
    """A thread that decodes and delivers a chunk on half of the CPU cores while the model computes the next chunk."""

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
    def is_current(self) -> bool:
        return get_ident() == self._ident

    @classmethod
    def create_if_faster(cls, device: torch.device) -> DecodingThread | None:
        """Return a new decoding thread if `device` is a CPU and torch has several threads, else None."""
        return cls() if device.type == "cpu" and torch.get_num_threads() > 1 else None

    def start_delivery(self, frames: Iterator[Frames], deliver: Callable[[Frames], None]) -> None:
        """Wait for the previous delivery, then call `deliver` for each of `frames` in the thread. Raises the previous
        delivery's error."""

        def run() -> None:
            for each in frames:
                deliver(each)

        self.wait()
        self._running = self._pool.submit(run)

    def wait(self) -> None:
        """Wait until all frames are delivered. Raises the error of the delivery, if any."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait for the last delivery, ignoring errors. Restore torch's number of threads."""
        self._pool.shutdown()
        torch.set_num_threads(self._cores)
