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
"""A lock to hold during a recording, so that only one thread records a CUDA graph at a time."""


@contextmanager
def on_recording_stream(x: Tensor) -> Iterator[None]:
    """A context manager that makes torch use the recording stream of the GPU of `x`, with garbage collection off."""
    stream = _stream(x.device)
    stream.wait_stream(torch.cuda.current_stream(x.device))
    # freeing an object that waits for the GPU, such as an old KV cache, would end the recording
    with pause_collector(), torch.cuda.stream(stream):
        one = x.new_ones(8, 8)
        F.linear(one, one, one[0])  # cuBLAS allocates its workspace, which must outlive the recording
        yield


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    # torch hands out its 32 streams of normal priority again and again, also to other threads
    return torch.cuda.Stream(device, priority=-1)


def failure_of(record: Callable[[], object]) -> BaseException | None:
    """Call `record` and return the exception that it raises, or None. The exception's traceback is removed, because it
    would keep tensors alive."""
    try:
        record()
    except BaseException as reason:
        reason.__cause__ = reason.__context__ = None
        return reason.with_traceback(None)
    return None


def message_or_raise(failure: BaseException | None) -> str:
    """Return the message of `failure`, its type's name if the message is empty, or "" for None. Raise `failure` if it
    is not an Exception."""
    if failure is None or isinstance(failure, Exception):
        return "" if failure is None else str(failure) or type(failure).__name__
    raise failure
