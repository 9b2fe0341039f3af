"""Delivery of a causal model's chunks from a GPU to host memory. Python waits for a chunk only after it has queued the
next chunk's first forward, so the GPU is not idle while Python writes frames or computes a camera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..model.host_memory import queued_on

T = TypeVar("T")


class HostCopy(NamedTuple):
    """The copy of a chunk's latent in host memory. Call `wait()` before reading it, because the GPU may still be
    writing it. `queued` is True if the latent comes from a GPU; otherwise the copy is complete from the start."""

    latent: Tensor
    wait: Callable[[], object]
    queued: bool

    @classmethod
    def of(cls, latent: Tensor, *devices: torch.device) -> HostCopy:
        """Queue the copy of a latent to host memory, and return it. Its `wait` also waits for the operations queued so
        far on `devices`."""
        on_gpu = latent.device.type == "cuda"
        copy = latent.to("cpu", non_blocking=on_gpu)
        return cls(copy, queued_on(latent.device, *devices), on_gpu)


class Delivery(Generic[T]):
    """A queue that holds a finished chunk until the next chunk's first forward is queued on the GPU.

    The queue then calls `deliver(latent, item)` with the chunk's latent in host memory and the item that was added with
    it. `latents` lists all delivered latents, including the current one during `deliver`. Pass `forward_done` to the
    loop as its callback, and call `finish` after the last chunk. Without a GPU each chunk is delivered immediately.
    """

    def __init__(self, deliver: Callable[[Tensor, T], None]) -> None:
        self._deliver = deliver
        self._queued: tuple[HostCopy, T] | None = None
        self.latents: list[Tensor] = []

    def add(self, latent: Tensor, item: T, *devices: torch.device) -> None:
        """Queue a chunk's `latent` and an `item`, such as its frames. `devices` are other devices that still compute
        `item`; delivery waits for them too. Without a GPU, latent and item are delivered immediately."""
        copy = HostCopy.of(latent, *devices)
        self._queued = copy, item
        if not copy.queued:
            self.finish()

    def forward_done(self, _chunk: int, _forward: int) -> None:
        """Deliver the queued chunk, if any. The loop calls this after each forward, so the chunk is delivered after the
        next chunk's first forward was queued."""
        self.finish()

    def finish(self) -> None:
        """Wait for the queued chunk, if any, and deliver it. If the wait is interrupted, the chunk stays queued."""
        if self._queued is None:
            return
        self._queued[0].wait()
        (copy, item), self._queued = self._queued, None
        self.latents.append(copy.latent)
        self._deliver(copy.latent, item)
