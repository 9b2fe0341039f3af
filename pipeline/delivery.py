"""The way of a causal model's chunks from a GPU to host memory.

Python queues a chunk's kernels faster than a GPU runs them. So it waits for a chunk only when the next chunk's first
forward is queued after it: the GPU never waits for Python to write frames or to compute a camera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..model.host_memory import queued_on

T = TypeVar("T")


class HostCopy(NamedTuple):
    """A chunk's latent in host memory. A GPU may still be at work on it until `wait()` has returned."""

    latent: Tensor
    wait: Callable[[], object]
    queued: bool

    @classmethod
    def of(cls, latent: Tensor, *devices: torch.device) -> HostCopy:
        """Queue the copy of a latent. `wait` also waits for the work that is queued on `devices` now."""
        on_gpu = latent.device.type == "cuda"
        copy = latent.to("cpu", non_blocking=on_gpu)
        return cls(copy, queued_on(latent.device, *devices), on_gpu)


class Delivery(Generic[T]):
    """Delivers chunks one behind the loop that makes them.

    `deliver(latent, item)` receives each chunk's latent in host memory and the item that was added with it.
    `latents`: the chunks that were delivered, including the one that is being delivered. Use `forward_done` as the
    loop's callback, and call `finish` after the last chunk."""

    def __init__(self, deliver: Callable[[Tensor, T], None]) -> None:
        self._deliver = deliver
        self._queued: tuple[HostCopy, T] | None = None
        self.latents: list[Tensor] = []

    def add(self, latent: Tensor, item: T, *devices: torch.device) -> None:
        """Queue a chunk, or deliver it at once if no GPU computes it. `devices`: other devices that compute `item`."""
        copy = HostCopy.of(latent, *devices)
        self._queued = copy, item
        if not copy.queued:
            self.finish()

    def forward_done(self, _chunk: int, _forward: int) -> None:
        """Deliver the queued chunk, since the next chunk's first forward is queued after it."""
        self.finish()

    def finish(self) -> None:
        """Wait for the queued chunk, if there is one, and deliver it. An interrupt of the wait leaves it queued."""
        if self._queued is None:
            return
        self._queued[0].wait()
        (copy, item), self._queued = self._queued, None
        self.latents.append(copy.latent)
        self._deliver(copy.latent, item)
