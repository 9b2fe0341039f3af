"""Weights saved by torch.save, mapped instead of read, and never unpickled beyond plain tensors."""

import re
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from .entries import TensorEntry

ZIP_MAGIC = b"PK\x03\x04"
_WRAPPERS = ("state_dict", "model", "module")


def read_torch_file(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a zip-format torch.save file as mapped views.

    Raises CheckpointError for a file that is truncated, holds anything but tensors, or would run code: such a file is
    refused without running it.
    """
    state = _load(path)
    for key in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict):
        raise CheckpointError(f"{path.name}: holds a {type(state).__name__}, expected a dictionary of tensors")
    other = [str(key) for key, value in state.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if other:
        raise CheckpointError(f"{path.name}: {len(other)} values are not tensors ({', '.join(other[:3])}); "
                              "expected a plain state dict")  # fmt: skip
    return {name: _entry(path, name, tensor) for name, tensor in state.items()}


def _entry(path: Path, name: str, tensor: Tensor) -> TensorEntry:
    tensor = tensor.detach().contiguous()
    return TensorEntry(name, path, tensor.dtype, tuple(tensor.shape), tensor)


def _load(path: Path):
    with path.open("rb") as file:
        if file.read(4) != ZIP_MAGIC:
            raise CheckpointError(f"{path.name}: not a torch.save file in today's zip format; save it again with a "
                                  "current torch, or use the safetensors file")  # fmt: skip
    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # what a broken or hostile archive raises is up to its bytes
        culprit = re.search(r"GLOBAL (\S+)", str(error))
        if culprit:
            raise CheckpointError(
                f"{path.name}: refused, it asks to run {culprit[1]}; weight files hold tensors only. "
                "Use the safetensors file, or get it from a source that you trust"
            ) from error
        reason = str(error).strip().split("\n")[0][:200]
        raise CheckpointError(f"{path.name}: cannot be read as torch.save weights ({reason}); get it again") from error
