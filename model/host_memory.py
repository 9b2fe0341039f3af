"""What passes between host memory and a GPU beside its computing: without a wait, and at the bus's speed."""

import weakref

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
    pinned: list[Tensor] = []
    weakref.finalize(owner, _unpin, pinned, device)
    for tensor in tensors:
        tensor.zero_()  # touches the pages with all cores; registering would do it with one
        status = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
        if status:
            wanted, done = (sum(each.nbytes for each in some) / 1e9 for some in (tensors, pinned))
            raise InputError(
                f"{wanted:.1f} GB of host memory cannot be pinned (CUDA error {status} after {done:.1f} GB): close "
                "other programs, or use a smaller `window` or `kv_cache` 8bit"
            )
        pinned.append(tensor)


def _unpin(tensors: list[Tensor], device: torch.device) -> None:
    torch.cuda.synchronize(device)
    for tensor in tensors:
        torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
    tensors.clear()
