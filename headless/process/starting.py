"""Libraries that take long to start, started in threads beside other work. Importing this imports no torch."""

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
    """Have OpenMP's threads sleep while they wait. By default each one spins for milliseconds, at the cost of whatever
    else runs on its core: a run on two busy cores takes ten times as long. This has no effect once torch is imported.
    A choice that the environment makes stays."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "passive"


def start_cuda() -> None:
    """Have a thread start CUDA's driver, 0.3 s, while the caller imports torch. Then it starts cuDNN, half a second,
    and another thread Triton, a second, while the run's files are opened. Nothing happens where there is no such
    driver, or for one of several processes. A process that forks later must not call this."""
    if sys.platform == "linux" and "WORLD_SIZE" not in os.environ:
        Thread(target=_start_cuda).start()


@contextmanager
def spared_imports(own_process: bool) -> Iterator[None]:
    """Modules are imported meanwhile. In a process of our own nobody looks for garbage among them, then or later: a run
    collects it after each stage, which took 1.9 of the toy's 4.9 s. In another's, its garbage of now would stay."""
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
    with suppress(Exception):  # what does not work here is told by the run's own first use of it
        if _start_driver():
            import torch  # waits until the caller's import has ended

            if main_thread().is_alive():  # not where an input was wrong
                _triton(0)
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
    """Triton takes a second to start, most of it for a hash of its own files. A thread has it start meanwhile."""
    if device.type == "cuda":
        _triton(device.index or 0)
    try:
        yield
    finally:
        wait_for_triton(device)


def wait_for_triton(device: torch.device) -> None:
    """Return when Triton has started, on a GPU. Two threads that need it first would both compute the hash."""
    if device.type == "cuda":
        _triton(device.index or 0).join()


@cache
def _triton(gpu: int) -> Thread:
    """The thread that has Triton start, once in a process."""
    thread = Thread(target=_start_triton, args=(gpu,))
    thread.start()
    return thread


def _start_triton(gpu: int) -> None:
    import torch

    with suppress(Exception):  # the models' first kernel meets it again, and says so
        from ...model.kernels.pointwise import gated_add_

        x = torch.zeros(1, 64, device=f"cuda:{gpu}")
        with torch.cuda.device(gpu):
            gated_add_(x, x.bfloat16(), x[0])
