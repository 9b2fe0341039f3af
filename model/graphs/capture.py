"""Helpers for recording CUDA graphs, used by the transformer and the VAE."""

from collections.abc import Callable
from threading import Lock

ONE_AT_A_TIME = Lock()
"""The lock to hold while a CUDA graph is recorded, because torch cannot free cached memory for another thread then."""


def failure_of(record: Callable[[], object]) -> str:
    """Run `record` while a CUDA graph is being recorded. Return the message of its exception, or an empty string.

    The exception is not raised, because it would keep tensors alive until after the recording. If torch uses CUDA's own
    allocator, as in ComfyUI, freeing these tensors at that time would end the process.
    """
    try:
        record()
    except Exception as reason:
        return str(reason) or type(reason).__name__
    return ""
