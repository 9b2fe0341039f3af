"""The start of slow libraries in background threads. Importing this module does not import torch."""

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
    """Let OpenMP's threads sleep while they wait, unless the environment sets their policy. By default they spin for
    milliseconds, so that a run on two busy cores takes ten times as long. The call has an effect only before torch is
    imported."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "passive"


def start_cuda() -> None:
    """Start CUDA's driver (0.3 s) in a thread while the caller imports torch, then cuDNN (0.5 s) and, in another
    thread, Triton (1 s). Nothing happens without a CUDA driver, and in one of several processes. A process that forks
    later must not call this function."""
    if sys.platform == "linux" and "WORLD_SIZE" not in os.environ:
        Thread(target=_start_cuda).start()


@contextmanager
def spared_imports(own_process: bool) -> Iterator[None]:
    """Disable garbage collection for the imports in this context, in the command's own process only, and exempt the
    imported objects from later collections. A run collects garbage after each stage, which took 1.9 of the toy's 4.9 s.
    In another program's process this would exempt that program's objects too."""
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
    """Create the CUDA context of the first GPU, which torch reuses, and return whether there is a GPU."""
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return False
    return not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@contextmanager
def triton_starting(device: torch.device) -> Iterator[None]:
    """Start Triton in a thread while this context is open, and wait for it at the end. Its start takes a second, mostly
    for a hash of its own files."""
    if device.type == "cuda":
        _triton(device.index or 0)
    try:
        yield
    finally:
        wait_for_triton(device)


def wait_for_triton(device: torch.device) -> None:
    """Wait until Triton has started, if `device` is a GPU. Otherwise two threads might both compute the hash of its
    files."""
    if device.type == "cuda":
        _triton(device.index or 0).join()


@cache
def _triton(gpu: int) -> Thread:
    """Return the thread that starts Triton; a process has one per GPU."""
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
