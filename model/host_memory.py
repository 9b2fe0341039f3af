"""What passes between host memory and a GPU beside its computing: without a wait, and at the bus's speed."""

import weakref
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ..errors import InputError


def upload(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor on the device. Python does not ask to wait for what is queued on a CUDA device. For others it waits:
    some, such as MPS, would read the host memory when it has other contents already."""
    return tensor.to(device, dtype, non_blocking=device.type == "cuda")


def pin(owner: object, tensors: list[Tensor], device: torch.device) -> None:
    """Register the tensors' memory with CUDA until `owner` goes. torch's own pinned memory would take up to twice as
    much: it rounds every request up to a power of two.

    Raises InputError where the system does not let that much be pinned."""
    pin_in_thread(owner, [tensors], device)[0].result()


def pin_in_thread(owner: object, groups: list[list[Tensor]], device: torch.device) -> list[Future[None]]:
    """`pin` groups of tensors, one group after the other, while the caller goes on: 23 GB take five seconds. A group's
    result is there, or raises what `pin` raises, when its turn is over. Do not touch its tensors before."""
    pinned: list[Tensor] = []
    wanted = sum(tensor.nbytes for group in groups for tensor in group)
    thread = ThreadPoolExecutor(1)
    weakref.finalize(owner, _unpin, thread, pinned, device)
    return [thread.submit(_pin, group, pinned, wanted, device) for group in groups]


def _pin(tensors: list[Tensor], pinned: list[Tensor], wanted: int, device: torch.device) -> None:
    for tensor in tensors:
        tensor.zero_()  # touches the pages with all cores; registering would do it with one
        with torch.cuda.device(device):  # a thread has a current one of its own
            status = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if status:
            done = sum(each.nbytes for each in pinned) / 1e9
            raise InputError(
                f"{wanted / 1e9:.1f} GB of host memory cannot be pinned (CUDA error {status} after {done:.1f} GB): "
                "close other programs, or use a smaller `window` or `kv_cache` 8bit"
            )
        pinned.append(tensor)


def _unpin(thread: ThreadPoolExecutor, tensors: list[Tensor], device: torch.device) -> None:
    thread.shutdown(cancel_futures=True)
    torch.cuda.synchronize(device)
    for tensor in tensors:
        torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
    tensors.clear()
