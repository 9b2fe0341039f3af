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

    def send(self, buffer: Tensor, pieces: Pieces) -> None:
        """Copy from byte `start` of the buffer to each target, for all (start, target)."""
        for start, target in pieces:
            target.copy_(buffer[start : start + target.numel()])


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

    def send(self, buffer: Tensor, pieces: Pieces) -> None:
        with torch.cuda.stream(self._stream):
            for start, target in pieces:
                target.copy_(buffer[start : start + target.numel()], non_blocking=True)
            self._sent[self._turn].record()

    def finish(self) -> None:
        self._stream.synchronize()


def started(device: torch.device) -> torch.cuda.Event | None:
    """The point in the calling thread's CUDA stream that copies have to wait for; None on other devices."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


@contextmanager
def open_lane(device: torch.device, start, buffers: int, chunk_bytes: int) -> Iterator[HostLane | CudaLane]:
    """A lane to `device`; when the context ends, by an error too, nothing is in flight any more."""
    with torch.no_grad():
        if device.type != "cuda":
            yield HostLane(chunk_bytes)
            return
        lane = CudaLane(device, start, buffers, chunk_bytes)
        try:
            yield lane
        finally:
            lane.finish()
