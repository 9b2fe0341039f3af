"""Delivery of a causal model's chunks to host memory while the GPU computes the next chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..model.host_memory import queued_on

T = TypeVar("T")


class HostCopy(NamedTuple):
    """The copy of a chunk's latent in host memory.

    wait: a function that returns when the copy is complete.
    """

    latent: Tensor
    wait: Callable[[], object]
    from_gpu: bool

    @classmethod
    def of(cls, latent: Tensor, *devices: torch.device) -> HostCopy:
        """Start the copy of a latent to host memory. Return its HostCopy, whose `wait` returns when the copy and all
        operations queued so far on `devices` are complete."""
        on_gpu = latent.device.type == "cuda"
        copy = latent.to("cpu", non_blocking=on_gpu)
        return cls(copy, queued_on(latent.device, *devices), on_gpu)


class Delivery(Generic[T]):
    """A queue that passes a finished chunk to `deliver(latent, item)` while the GPU computes the next chunk. To keep
    the GPU busy, it calls `deliver` only when the next chunk's first forward is queued. Chunks on a CPU are delivered
    at once.

    latents: the latents delivered so far, on the CPU.
    """

    def __init__(self, deliver: Callable[[Tensor, T], None]) -> None:
        self._deliver = deliver
        self._queued: tuple[HostCopy, T] | None = None
        self.latents: list[Tensor] = []

    def add(self, latent: Tensor, item: T, *devices: torch.device) -> None:
        """Queue a chunk's latent and an item to deliver with it. The delivery waits until `devices` have computed
        both."""
        copy = HostCopy.of(latent, *devices)
        self._queued = copy, item
        if not copy.from_gpu:
            self.finish()

    def forward_done(self, _chunk: int, _forward: int) -> None:
        """Deliver the queued chunk, if any. Pass this method to the loop as its callback."""
        self.finish()

    def finish(self) -> None:
        """Wait for the queued chunk, if any, and deliver it. Call this after the last chunk."""
        if self._queued is None:
            return
        self._queued[0].wait()
        (copy, item), self._queued = self._queued, None
        self.latents.append(copy.latent)
        self._deliver(copy.latent, item)
