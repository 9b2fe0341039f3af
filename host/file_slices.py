"""Telling ComfyUI's dynamic VRAM where in a file each weight lies, so that it reads from there to the GPU.

Without it every weight is copied out of the mapping by one thread, page fault by page fault."""

import threading
from pathlib import Path

import torch
from comfy.memory_management import TensorFileSlice

from ..loaders import Checkpoint


def tag_file_slices(model: torch.nn.Module, checkpoint: Checkpoint) -> int:
    """Mark the weights of a model that are views of the checkpoint's mapped files; returns how many are.

    The marks are the ones that ComfyUI's own safetensors loader leaves on its tensors' storages."""
    mapped = {
        entry.view().data_ptr(): entry
        for entry in checkpoint.tensors.values()
        if not isinstance(entry.source, torch.Tensor) and entry.nbytes
    }
    files = _Files()
    tagged = 0
    for parameter in model.parameters():
        tensor = getattr(parameter, "_qdata", parameter)
        entry = mapped.get(tensor.data_ptr())
        if entry is not None and entry.nbytes == tensor.nbytes:
            mark = TensorFileSlice(*files[entry.path], entry.offset, entry.nbytes)
            tensor.untyped_storage()._comfy_tensor_file_slice = mark
            tagged += 1
    return tagged


class _Files(dict):
    """Each file opened once, with the lock that its readers share."""

    def __missing__(self, path: Path):
        self[path] = path.open("rb", buffering=0), threading.Lock()
        return self[path]
