"""Start CUDA, cuDNN and Triton in background threads. The module imports no torch."""

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
    """Let OpenMP's waiting threads sleep, unless an environment variable such as OMP_WAIT_POLICY sets their behaviour.
    Call this function before torch is imported."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "passive"


def start_cuda() -> None:
    """Start CUDA, cuDNN and Triton in threads while the caller imports torch. Do not call this function in a process
    that forks later."""
    if sys.platform == "linux" and "WORLD_SIZE" not in os.environ:
        Thread(target=_start_cuda).start()


@contextmanager
def pause_collection(own_process: bool) -> Iterator[None]:
    """Turn garbage collection off within this context, then exempt existing objects from collection. Nothing changes
    unless the command owns the process (`own_process`)."""
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
    """Create the CUDA context that torch will use. Return whether there is a GPU."""
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return False
    return not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@contextmanager
def triton_starting(device: torch.device) -> Iterator[None]:
    """Initialize Triton for a GPU in a thread, which ignores errors. The context's end waits for the thread."""
    if device.type == "cuda":
        _triton(device.index or 0)
    try:
        yield
    finally:
        wait_for_triton(device)


def wait_for_triton(device: torch.device) -> None:
    """Wait until Triton is initialized for a GPU, and start this initialization if needed. Do nothing for the CPU."""
    if device.type == "cuda":
        _triton(device.index or 0).join()


@cache
def _triton(gpu: int) -> Thread:
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
