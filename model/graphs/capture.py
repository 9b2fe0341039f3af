"""Helpers for recording CUDA graphs, used by the transformer and the VAE."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

import torch
from torch import Tensor
from torch.nn import functional as F

from ..host_memory import pause_collector

ONE_AT_A_TIME = Lock()
"""The lock that a thread holds while it records a CUDA graph, so that only one thread records at a time. During a
recording torch cannot free cached memory for other threads."""


@contextmanager
def on_recording_stream(x: Tensor) -> Iterator[None]:
    """A context manager that makes torch use the stream on which all graphs of the GPU of `x` are recorded.

    On entry:
    - The stream waits for the work queued on the current stream.
    - Python's garbage collector is switched off. Otherwise it could free an object that waits for the GPU, such as an
    old KV cache, and such a wait would end the recording.
    - A small matrix product lets cuBLAS allocate its workspace for this thread and stream. The workspace must outlive
    the recording, so it is allocated before.
    """
    stream = _stream(x.device)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with pause_collector(), torch.cuda.stream(stream):
        one = x.new_ones(8, 8)
        F.linear(one, one, one[0])
        yield


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return a GPU's stream for recordings, always the same one. Its priority is high, because torch hands out the same
    32 streams of normal priority again and again. On such a stream, a recording would include the work that another
    thread queues."""
    return torch.cuda.Stream(device, priority=-1)


def failure_of(record: Callable[[], object]) -> BaseException | None:
    """Call `record` during the recording of a CUDA graph. Return its exception without the traceback, or None if the
    call succeeds.

    The traceback is removed because it would keep tensors alive until after the recording. With CUDA's own allocator,
    as in ComfyUI, freeing these tensors after the recording would end the process.
    """
    try:
        record()
    except BaseException as reason:
        reason.__cause__ = reason.__context__ = None
        return reason.with_traceback(None)
    return None


def message_of(failure: BaseException | None) -> str:
    """Return the message of a recording's exception `failure`, or the name of its type if the message is empty. Return
    an empty string for None. Raise `failure` itself if it is not an Exception, such as KeyboardInterrupt."""
    if failure is None or isinstance(failure, Exception):
        return "" if failure is None else str(failure) or type(failure).__name__
    raise failure
