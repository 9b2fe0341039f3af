"""Functions for host memory, and for copies from it to a GPU."""

import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from ..errors import InputError

_pauses, _pausing = {"open": 0, "enabled": False}, threading.Lock()


@contextmanager
def pause_collector() -> Iterator[None]:
    """A context manager that turns Python's garbage collector off. Contexts of several threads may overlap."""
    with _pausing:
        _pauses["enabled"] = _pauses["enabled"] if _pauses["open"] else gc.isenabled()
        _pauses["open"] += 1
        gc.disable()
    try:
        yield
    finally:
        with _pausing:
            _pauses["open"] -= 1
            if _pauses["enabled"] and not _pauses["open"]:
                gc.enable()


def give_back_memory() -> None:
    """Give the operating system the free memory that glibc's allocator still holds. Without glibc, do nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def upload(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return `tensor` on the device, in `dtype` if not None. Copies to CUDA devices are non-blocking."""
    # elsewhere, such as on MPS, a non-blocking copy could read host memory that was overwritten since
    return tensor.to(device, dtype, non_blocking=device.type == "cuda")


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of `tensor` in pinned memory. Return `tensor` itself if it is not on the CPU, or the device is not
    CUDA."""
    return tensor.contiguous().pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor


def queued_on(*devices: torch.device) -> Callable[[], None]:
    """Return a function that waits for all work queued so far on the current streams of `devices`. Devices other than
    CUDA are ignored."""
    queues = [torch.cuda.current_stream(device) for device in dict.fromkeys(devices) if device.type == "cuda"]
    events = [queue.record_event() for queue in queues]

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def zero_and_pin(owner: object, tensors: list[Tensor], device: torch.device) -> None:
    """Zero the CPU tensors, and pin their memory until `owner` is garbage-collected. The unpinning first waits for
    `device`. Raise InputError if pinning fails."""
    pinned: list[Tensor] = []
    weakref.finalize(owner, _unpin, pinned, device)
    _pin(tensors, pinned, sum(tensor.nbytes for tensor in tensors))


class Pinning:
    """A background thread that applies `zero_and_pin` to groups of tensors, group by group."""

    def __init__(self, owner: object, groups: list[list[Tensor]], device: torch.device) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._done: list[Future[None]] = [Future() for _ in groups]
        self._pinned: list[Tensor] = []
        self._closing = threading.Event()
        given = groups, torch.is_inference_mode_enabled()  # inference mode is per thread
        self._thread = threading.Thread(target=self._work, args=given, daemon=True)
        self._thread.start()
        weakref.finalize(owner, self._close)

    def wait(self, group: int) -> None:
        """Wait until group number `group` is pinned. Raise the error of `zero_and_pin` if pinning failed."""
        self._done[group].result()

    def _work(self, groups: list[list[Tensor]], inference: bool) -> None:
        wanted = sum(tensor.nbytes for group in groups for tensor in group)
        with torch.inference_mode(inference), torch.cuda.device(self._device):
            for index, group in enumerate(groups):
                if self._closing.is_set():
                    return
                try:
                    _pin(group, self._pinned, wanted)
                except Exception as error:  # pinning the other groups would only use up memory that is already short
                    for done in self._done[index:]:
                        done.set_exception(error)
                    return
                self._done[index].set_result(None)

    def _close(self) -> None:
        self._closing.set()
        if threading.current_thread() is self._thread:
            # The garbage collector may call this in the pinning thread itself, which cannot join itself.
            threading.Thread(target=self._close, daemon=False).start()
            return
        self._thread.join()
        _unpin(self._pinned, self._device)


def _pin(tensors: list[Tensor], pinned: list[Tensor], wanted: int) -> None:
    for tensor in filter(Tensor.numel, tensors):
        tensor.zero_()  # touches the pages with all cores; cudaHostRegister would do so with one
        # torch's own pinned memory would round each size up to a power of two
        status = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if status:
            done = sum(each.nbytes for each in pinned) / 1e9
            raise InputError(
                f"{wanted / 1e9:.1f} GB of host memory cannot be pinned (CUDA error {status} after {done:.1f} GB): "
                "close other programs, or use a smaller `window` or `kv_cache` 8bit"
            )
        pinned.append(tensor)


def _unpin(tensors: list[Tensor], device: torch.device) -> None:
    torch.cuda.synchronize(device)
    for tensor in tensors:
        torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
    tensors.clear()
