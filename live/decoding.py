"""On a processor a chunk's frames are decoded beside the next chunk's forwards: each has its share of the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident

import torch

from .walk import Frames


class DecodingThread:
    """Decodes and hands out, in a thread of its own, the frames of one chunk while the next one is made.

    The toy's layers are small: they gain less from a second core than from being alone on one. The thread that makes
    the chunks is the one that uses this; meanwhile it keeps the cores that the decoder does not have."""

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
        """Whether this is the thread that asks."""
        return get_ident() == self._ident

    @classmethod
    def where_it_gains(cls, device: torch.device) -> DecodingThread | None:
        """One for models on a processor with more than one core. A GPU decodes in its own time as it is."""
        return cls() if device.type == "cpu" and torch.get_num_threads() > 1 else None

    def hand_out(self, frames: Iterator[Frames], deliver: Callable[[Frames], None]) -> None:
        """Call `deliver` with each of the `frames` when it is decoded, behind those of the chunk before: until these
        are handed out, the caller waits. Raises what handing them out has raised."""

        def run() -> None:
            for each in frames:
                deliver(each)

        self.wait()
        self._running = self._pool.submit(run)

    def wait(self) -> None:
        """Until all frames are handed out. Raises what that has raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """The caller has all cores again, when the last frames are handed out."""
        self._pool.shutdown()
        torch.set_num_threads(self._cores)
