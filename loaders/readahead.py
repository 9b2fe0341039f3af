"""Bringing a checkpoint into the page cache before it is needed."""

import os
import threading
from pathlib import Path

from .checkpoint import Checkpoint

_STEP = 32 << 20
_BUFFER = 1 << 20


def warm(checkpoint: Checkpoint) -> threading.Thread:
    """Start reading the checkpoint's files into the page cache, in the background and without memory of our own.

    Returns the thread that does it; nothing has to wait for it. A file that cannot be read is left to whoever loads it.
    """
    thread = threading.Thread(target=_warm_files, args=(checkpoint.files,), daemon=True, name="lingbot-warm")
    thread.start()
    return thread


def _warm_files(files: tuple[Path, ...]) -> None:
    advise = _advise if hasattr(os, "posix_fadvise") else _read_through
    for file in files:
        try:
            with file.open("rb", buffering=0) as opened:
                advise(opened)
        except OSError:
            return


def _advise(file) -> None:
    # In steps: for a file that is not cached, one call for all of it blocks until most of it is read.
    for start in range(0, os.fstat(file.fileno()).st_size, _STEP):
        os.posix_fadvise(file.fileno(), start, _STEP, os.POSIX_FADV_WILLNEED)


def _read_through(file) -> None:
    buffer = bytearray(_BUFFER)
    while file.readinto(buffer):
        pass
