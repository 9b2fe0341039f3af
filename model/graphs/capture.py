"""Helpers shared by all code that records CUDA graphs."""

from collections.abc import Callable
from threading import Lock

ONE_AT_A_TIME = Lock()
"""The lock to hold while recording: torch frees no cached memory while another thread records on the GPU."""


def failure_of(work: Callable[[], object]) -> str:
    """Run work that is being recorded. Return the error message, or an empty string.

    An exception would keep tensors alive until the recording ends. If they are freed then, CUDA's own allocator, which
    ComfyUI chooses, ends the process."""
    try:
        work()
    except Exception as reason:
        return str(reason) or type(reason).__name__
    return ""
