"""What all who record CUDA graphs share."""

from collections.abc import Callable
from threading import Lock

ONE_AT_A_TIME = Lock()
"""Held by who records. torch gives no reserve back to CUDA while another thread records on the GPU."""


def failure_of(work: Callable[[], object]) -> str:
    """Does work that is being recorded. Returns what went wrong, or nothing. An exception would hold tensors until the
    recording is over, and CUDA's own allocator, which ComfyUI chooses, ends the process where they are freed then."""
    try:
        work()
    except Exception as reason:
        return str(reason) or type(reason).__name__
    return ""
