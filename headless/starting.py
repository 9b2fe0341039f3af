"""Libraries that take long to start, started in threads beside other work. Importing this imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread, main_thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def start_cuda() -> None:
    """Have a thread start CUDA's driver while torch is imported, 0.3 s, and then Triton and cuDNN, half a second each,
    while the run's files are opened. Nothing happens where there is no such driver, or for one of several processes. A
    process that forks later must not call this."""
    if sys.platform == "linux" and "WORLD_SIZE" not in os.environ:
        Thread(target=_start_cuda).start()


def _start_cuda() -> None:
    with suppress(Exception):  # what does not work here is told by the run's own first use of it
        if _start_driver():
            import torch  # waits until the caller's import has ended

            if main_thread().is_alive():  # not where an input was wrong
                _start_triton(torch.device("cuda"))
            if main_thread().is_alive():
                x = torch.zeros(1, 16, 64, 64, device="cuda").contiguous(memory_format=torch.channels_last)
                torch.nn.functional.conv2d(x, x[:, :, :3, :3])


def _start_driver() -> bool:
    """Make the first GPU's context, which torch then finds. Returns whether there is one."""
    import ctypes

    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return False
    return not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


@contextmanager
def triton_starting(device: torch.device) -> Iterator[None]:
    """Triton takes half a second to start, most of it for a hash of its own files. A thread has it start meanwhile."""
    thread = Thread(target=_start_triton, args=(device,))
    if device.type == "cuda":
        thread.start()
    try:
        yield
    finally:
        if thread.is_alive():
            thread.join()


def _start_triton(device: torch.device) -> None:
    import torch

    with suppress(Exception):  # the models' first kernel meets it again, and says so
        from ..model.kernels.pointwise import gated_add_

        x = torch.zeros(1, 64, device=device)
        gated_add_(x, x.bfloat16(), x[0])
