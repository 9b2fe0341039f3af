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
"""The lock to hold while a CUDA graph is recorded. During a recording torch cannot free cached memory for other
threads."""


@contextmanager
def on_recording_stream(x: Tensor) -> Iterator[None]:
    """A context manager that makes torch use the stream on which all graphs of the GPU of `x` are recorded.

    The stream is shared, because cuBLAS has a workspace for each thread and stream. The workspace must outlive the
    recording, so a small matrix product allocates it before the recording starts.

    Python's garbage collector is off, because an object that waits for the GPU when it is freed, such as an old KV
    cache, would end the recording.
    """
    stream = _stream(x.device)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    with pause_collector(), torch.cuda.stream(stream):
        one = x.new_ones(8, 8)
        F.linear(one, one, one[0])
        yield


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return a GPU's stream for recordings. Its priority is high, because torch hands out the same 32 streams of normal
    priority again and again, and a recording would include what another thread queues on its stream."""
    return torch.cuda.Stream(device, priority=-1)


def failure_of(record: Callable[[], object]) -> BaseException | None:
    """Call `record` during the recording of a CUDA graph, and return its exception without a traceback, or None.

    A traceback would keep tensors alive until after the recording. With CUDA's own allocator, as in ComfyUI, freeing
    them then would end the process.
    """
    try:
        record()
    except BaseException as reason:
        reason.__cause__ = reason.__context__ = None
        return reason.with_traceback(None)
    return None


def message_of(failure: BaseException | None) -> str:
    """Return the message of a recording's exception (the name of its type if the message is empty), or an empty string
    without one. A `failure` that is not an Exception, such as KeyboardInterrupt, is raised."""
    if failure is None or isinstance(failure, Exception):
        return "" if failure is None else str(failure) or type(failure).__name__
    raise failure
