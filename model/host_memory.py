"""What passes between host memory and a GPU beside its computing: without a wait, and at the bus's speed."""

import ctypes
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import torch
from torch import Tensor

from ..errors import InputError


def give_back_memory() -> None:
    """Have the allocator give freed memory back to the system, where it is glibc's: tensors of many sizes, made in
    several threads, leave holes that it keeps otherwise."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def upload(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor on the device. Python does not ask to wait for what is queued on a CUDA device. For others it waits:
    some, such as MPS, would read the host memory when it has other contents already."""
    return tensor.to(device, dtype, non_blocking=device.type == "cuda")


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor in pinned memory, if a CUDA device is to `upload` it. What is not pinned is copied only when all is
    computed that was queued before, and Python waits for that."""
    return tensor.contiguous().pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor


def queued_on(*devices: torch.device) -> Callable[[], None]:
    """Waits, when it is called, for what is queued on these devices now. Only CUDA devices queue anything."""
    queues = [torch.cuda.current_stream(device) for device in dict.fromkeys(devices) if device.type == "cuda"]
    events = [queue.record_event() for queue in queues]

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def pin(owner: object, tensors: list[Tensor], device: torch.device) -> None:
    """Register the tensors' memory with CUDA until `owner` goes. torch's own pinned memory would take up to twice as
    much: it rounds every request up to a power of two.

    Raises InputError where the system does not let that much be pinned."""
    pinned: list[Tensor] = []
    weakref.finalize(owner, _unpin, pinned, device)
    _pin(tensors, pinned, sum(tensor.nbytes for tensor in tensors))


class Pinning:
    """A thread that pins groups of tensors (see `pin`), one group after the other, while its maker goes on: 23 GB take
    five seconds. They stay pinned until `owner` goes; if that is earlier, the thread stops."""

    def __init__(self, owner: object, groups: list[list[Tensor]], device: torch.device) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device
        self._done: list[Future[None]] = [Future() for _ in groups]
        self._pinned: list[Tensor] = []
        self._closing = threading.Event()
        given = groups, torch.is_inference_mode_enabled()  # a thread has a mode of its own
        self._thread = threading.Thread(target=self._work, args=given, daemon=True)
        self._thread.start()
        weakref.finalize(owner, self._close)

    def wait(self, group: int) -> None:
        """Return when the group is pinned; before, nobody may touch its tensors. Raises what `pin` raises."""
        self._done[group].result()

    def _work(self, groups: list[list[Tensor]], inference: bool) -> None:
        wanted = sum(tensor.nbytes for group in groups for tensor in group)
        with torch.inference_mode(inference), torch.cuda.device(self._device):
            for index, group in enumerate(groups):
                if self._closing.is_set():
                    return
                try:
                    _pin(group, self._pinned, wanted)
                except Exception as error:  # the rest would only take memory that is short
                    for done in self._done[index:]:
                        done.set_exception(error)
                    return
                self._done[index].set_result(None)

    def _close(self) -> None:
        self._closing.set()
        if threading.current_thread() is self._thread:
            # The garbage collector runs in any thread. This one would wait for itself.
            threading.Thread(target=self._close, daemon=False).start()
            return
        self._thread.join()
        _unpin(self._pinned, self._device)


def _pin(tensors: list[Tensor], pinned: list[Tensor], wanted: int) -> None:
    for tensor in filter(Tensor.numel, tensors):
        tensor.zero_()  # touches the pages with all cores; registering would do it with one
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
