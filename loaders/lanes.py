"""One thread's way to a device: staging buffers, and copies out of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Pieces = list[tuple[int, Tensor]]


class HostLane:
    """For any device: ordinary memory, and copies that are finished when `send` returns."""

    def __init__(self, chunk_bytes: int):
        self._buffer = torch.empty(chunk_bytes, dtype=torch.uint8)

    def free_buffer(self) -> Tensor:
        """A host buffer that nothing reads from any more."""
        return self._buffer

    def send(self, buffer: Tensor, pieces: Pieces, after: None = None) -> None:
        """Copy from byte `start` of the buffer to each target, for all (start, target)."""
        for start, target in pieces:
            target.copy_(buffer[start : start + target.numel()])

    def finish(self) -> None:
        """Wait until nothing is in flight any more."""


class CudaLane:
    """Pinned buffers and a stream of its own; a buffer is free again when the event after its copies has passed."""

    def __init__(self, device: torch.device, start: torch.cuda.Event, buffers: int, chunk_bytes: int):
        self._stream = torch.cuda.Stream(device)
        # The targets' memory may still be in use by work queued before they were allocated.
        self._stream.wait_event(start)
        self._buffers = [torch.empty(chunk_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(buffers)]
        self._sent = [torch.cuda.Event() for _ in range(buffers)]
        self._turn = 0

    def free_buffer(self) -> Tensor:
        self._turn = (self._turn + 1) % len(self._buffers)
        self._sent[self._turn].synchronize()
        return self._buffers[self._turn]

    def send(self, buffer: Tensor, pieces: Pieces, after: torch.cuda.Event | None = None) -> torch.cuda.Event:
        """As HostLane, but begun only: once `after` has passed. Returns the event behind the copies.

        What waits for `after` may take long, so that `free_buffer` then sleeps instead of spinning."""
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            for start, target in pieces:
                target.copy_(buffer[start : start + target.numel()], non_blocking=True)
            sent = self._sent[self._turn] = torch.cuda.Event(blocking=after is not None)
            sent.record(self._stream)
        return sent

    def finish(self) -> None:
        self._stream.synchronize()


def started(device: torch.device) -> torch.cuda.Event | None:
    """The point in the calling thread's CUDA stream that copies have to wait for; None on other devices."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def new_lane(device: torch.device, start, buffers: int, chunk_bytes: int) -> HostLane | CudaLane:
    """A lane to `device`, whose memory may be written to from the event `start` on."""
    return CudaLane(device, start, buffers, chunk_bytes) if device.type == "cuda" else HostLane(chunk_bytes)


@contextmanager
def open_lane(device: torch.device, start, buffers: int, chunk_bytes: int) -> Iterator[HostLane | CudaLane]:
    """A new lane; when the context ends, by an error too, nothing is in flight any more."""
    with torch.no_grad():
        lane = new_lane(device, start, buffers, chunk_bytes)
        try:
            yield lane
        finally:
            lane.finish()
