"""Helpers for recording CUDA graphs, used by the transformer and the VAE."""

from collections.abc import Callable
from threading import Lock

ONE_AT_A_TIME = Lock()
"""The lock to hold during the recording of a CUDA graph, so that only one graph is recorded at a time.

While a graph is recorded, torch cannot free cached memory for another thread.
"""


def failure_of(record: Callable[[], object]) -> str:
    """Call `record` while a CUDA graph is being recorded, and return the message of an exception, or an empty string.

    The exception is not raised, because a raised exception would keep tensors alive until after the recording. If torch
    uses CUDA's own allocator, as in ComfyUI, freeing these tensors then would end the process.
    """
    try:
        record()
    except Exception as reason:
        return str(reason) or type(reason).__name__
    return ""
