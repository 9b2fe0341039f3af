"""The copy of a causal model's chunks from a GPU to host memory.

Python queues a chunk's kernels faster than a GPU runs them. So Python waits for a chunk only after the next chunk's
first forward is queued: the GPU never waits while Python writes frames or computes a camera."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..model.host_memory import queued_on

T = TypeVar("T")


class HostCopy(NamedTuple):
    """A chunk's latent in host memory. A GPU may still be writing it until `wait()` has returned."""

    latent: Tensor
    wait: Callable[[], object]
    queued: bool

    @classmethod
    def of(cls, latent: Tensor, *devices: torch.device) -> HostCopy:
        """Queue the copy of a latent. `wait` also waits for the work now queued on `devices`."""
        on_gpu = latent.device.type == "cuda"
        copy = latent.to("cpu", non_blocking=on_gpu)
        return cls(copy, queued_on(latent.device, *devices), on_gpu)


class Delivery(Generic[T]):
    """A queue that delivers each chunk one chunk later than the loop makes it.

    `deliver(latent, item)` receives each chunk's latent in host memory and the item that was added with it. `latents`
    lists the delivered chunks, including the chunk now being delivered. Use `forward_done` as the loop's callback, and
    call `finish` after the last chunk."""

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
        """Deliver the queued chunk, since the next chunk's first forward is now queued."""
        self.finish()

    def finish(self) -> None:
        """Wait for the queued chunk, if any, and deliver it. If the wait is interrupted, the chunk stays queued."""
        if self._queued is None:
            return
        self._queued[0].wait()
        (copy, item), self._queued = self._queued, None
        self.latents.append(copy.latent)
        self._deliver(copy.latent, item)
