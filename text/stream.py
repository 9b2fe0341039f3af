"""Blocks of weights to the device, one ahead of the one in use.

To a CUDA device they go through small pinned buffers that several threads fill from the mapped file: the system
copies a mapped page to pageable memory at a few GB/s, several threads together at several times that.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

READERS = 8
CHUNK = 8 << 20

Block = dict[str, Tensor]


def stream_blocks(blocks: Iterable[Block], device: torch.device) -> Iterator[Block]:
    """Yields each block on `device`. On the CPU that is the mapped tensors themselves, without a copy."""
    if device.type != "cuda":
        for block in blocks:
            yield {key: tensor.to(device) for key, tensor in block.items()}
        return
    with PinnedUploader(device) as uploader:
        blocks = iter(blocks)
        ahead = uploader.start(next(blocks))
        for block in blocks:
            current, ahead = ahead, uploader.start(block)
            yield current.result()
            del current
        yield ahead.result()


class Upload:
    """A block on its way."""

    def __init__(self, block: Block, copies: list[Future]):
        self._block, self._copies = block, copies

    def result(self) -> Block:
        """The block once all of it is on the device."""
        for copy in self._copies:
            copy.result()
        return self._block


class PinnedUploader:
    """`READERS` threads, each with a stream of its own and one of `READERS` pinned buffers of `CHUNK` bytes."""

    def __init__(self, device: torch.device):
        self.device = device
        self._lanes: SimpleQueue[tuple[Tensor, torch.cuda.Stream]] = SimpleQueue()
        for _ in range(READERS):
            self._lanes.put((torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True), torch.cuda.Stream(device)))
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="text-upload")

    def __enter__(self) -> "PinnedUploader":
        return self

    def __exit__(self, *exception) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def start(self, block: Block) -> Upload:
        """Begins to copy a block; memory that it takes over is written to once earlier work is done with it."""
        target = {key: torch.empty(t.shape, dtype=t.dtype, device=self.device) for key, t in block.items()}
        free = torch.cuda.current_stream(self.device).record_event()
        copies = [
            self._pool.submit(self._copy, source, destination, free)
            for key, tensor in block.items()
            for source, destination in zip(_chunks(tensor), _chunks(target[key]), strict=True)
        ]
        return Upload(target, copies)

    def _copy(self, source: Tensor, destination: Tensor, free: torch.cuda.Event) -> None:
        pinned, stream = self._lanes.get()
        try:
            staged = pinned[: source.numel()]
            np.copyto(staged.numpy(), source.numpy())
            # The caller may be in inference mode, a thread is not, and only in it may such tensors be written to.
            with torch.inference_mode(), torch.cuda.stream(stream):
                stream.wait_event(free)
                destination.copy_(staged, non_blocking=True)
            stream.synchronize()
        finally:
            self._lanes.put((pinned, stream))


def _chunks(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).split(CHUNK)
