"""Memory that is free but still with the process."""

import ctypes
import sys


def return_freed_memory() -> None:
    """glibc keeps freed memory for later; a tokenizer's vocabulary leaves 250 MB. Other C libraries give it back
    by themselves."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
