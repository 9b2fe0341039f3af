"""Helpers for recording CUDA graphs, used by the transformer and the VAE."""

from collections.abc import Callable
from threading import Lock

ONE_AT_A_TIME = Lock()
"""The lock to hold while a CUDA graph is recorded. During a recording torch cannot free cached memory for other
threads."""


def failure_of(record: Callable[[], object]) -> str:
    """Call `record` during the recording of a CUDA graph. Return the message of its exception, or an empty string if it
    succeeds.

    A raised exception would keep tensors alive until after the recording. With CUDA's own allocator, as in ComfyUI,
    freeing these tensors after the recording would end the process.
    """
    try:
        record()
    except Exception as reason:
        return str(reason) or type(reason).__name__
    return ""
