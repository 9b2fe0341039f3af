"""The start of slow libraries (CUDA, cuDNN and Triton) in background threads. Importing this module imports no
torch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Thread, main_thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def let_waiting_threads_sleep() -> None:
    """Let OpenMP's waiting threads sleep, unless the environment sets a policy. Call this before torch is imported. By
    default waiting threads spin for milliseconds, and a run on two busy cores takes ten times as long."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "passive"


def start_cuda() -> None:
    """Start CUDA (0.3 s) and then cuDNN (0.5 s) in a thread, and Triton (1 s) in another thread, while the caller
    imports torch. Do not call this function in a process that forks later.

    Nothing happens outside Linux, without a CUDA driver, and if several processes make the video.
    """
    if sys.platform == "linux" and "WORLD_SIZE" not in os.environ:
        Thread(target=_start_cuda).start()


@contextmanager
def pause_collection(own_process: bool) -> Iterator[None]:
    """Turn garbage collection off within this context. Later collections skip all objects that exist at the context's
    end. Without this, collections took 1.9 s of a 4.9 s run of the toy model. If `own_process` is False, nothing
    changes, because the objects of another program would be skipped too."""
    if not own_process:
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _start_cuda() -> None:
    with suppress(Exception):  # the run's own first use raises the error again
        if _start_driver():
            import torch  # waits until the caller's import has ended

            if main_thread().is_alive():  # not if the run already ended with an input error
                _triton(0)
                x = torch.zeros(1, 16, 64, 64, device="cuda").contiguous(memory_format=torch.channels_last)
                torch.nn.functional.conv2d(x, x[:, :, :3, :3])


def _start_driver() -> bool:
    """Create the CUDA context of the first GPU, which torch will use. Return whether there is a GPU."""
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return False
    return not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@contextmanager
def triton_starting(device: torch.device) -> Iterator[None]:
    """Start Triton in a thread at this context's beginning, and wait for it at the end. This takes a second, mostly for
    a hash of Triton's own files."""
    if device.type == "cuda":
        _triton(device.index or 0)
    try:
        yield
    finally:
        wait_for_triton(device)


def wait_for_triton(device: torch.device) -> None:
    """Wait until Triton has started on a GPU. If neither `start_cuda` nor `triton_starting` has begun the start, begin
    it now. Without the wait, the caller's first kernel would hash Triton's files a second time."""
    if device.type == "cuda":
        _triton(device.index or 0).join()


@cache
def _triton(gpu: int) -> Thread:
    """Start a thread that starts Triton on the GPU with this index, and return the thread. Later calls return the same
    thread."""
    thread = Thread(target=_start_triton, args=(gpu,))
    thread.start()
    return thread


def _start_triton(gpu: int) -> None:
    import torch

    with suppress(Exception):  # the models' first kernel raises the error again
        from ...model.kernels.pointwise import gated_add_

        x = torch.zeros(1, 64, device=f"cuda:{gpu}")
        with torch.cuda.device(gpu):
            gated_add_(x, x.bfloat16(), x[0])
