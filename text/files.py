"""Text encoder files as mapped tensors: safetensors, sharded safetensors with an index, or a zip-format `.pth`.

Nothing is read but headers; the tensors are views of the mapped file, whose pages the system may drop at any time.
"""

import json
import pickle
from pathlib import Path

import torch
from torch import Tensor

from ..errors import TextError
from .dependencies import require

_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


def map_tensors(path: str | Path) -> dict[str, Tensor]:
    """Every tensor of a file, or of a folder with one (or with shards and their index), by its name in the file.

    TextError for a missing, truncated or corrupt file, one of another format, and a pickle that holds more than data.
    """
    tensors: dict[str, Tensor] = {}
    for file in encoder_files(path):
        tensors.update(_map_file(file))
    return tensors


def encoder_files(path: str | Path) -> list[Path]:
    """The files behind `path`: itself, a folder's shards by its index, or the folder's only weight file."""
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise TextError(f"text encoder {path} does not exist")
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if indexes:
        return _shards(indexes[0])
    files = [file for file in sorted(path.iterdir()) if file.suffix in _SUFFIXES]
    named = [file for file in files if "t5" in file.name.lower()] or files
    if len(named) != 1:
        raise TextError(f"{path} should hold one text encoder file, found {[f.name for f in named]}; name the file")
    return named


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted({Path(name).name for name in json.loads(index.read_text("utf-8"))["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TextError(f"{index} is not an index of shards ({error}); download it again") from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise TextError(f"{index} names files that are not beside it: {', '.join(missing)}; download them")
    return [index.parent / name for name in names]


def _map_file(file: Path) -> dict[str, Tensor]:
    with file.open("rb") as opened:
        start = opened.read(16)
    if start.startswith(b"PK"):
        return _map_torch(file)
    if start[8:9] == b"{":
        return _map_safetensors(file)
    raise TextError(f"{file} is not a text encoder: {_what_it_is(start)}. Expected safetensors or a torch .pth file.")


def _what_it_is(start: bytes) -> str:
    if start.startswith(b"GGUF"):
        return "it is a GGUF file, which is not supported here"
    if start.startswith(b"version https://"):
        return "it is a Git LFS pointer, not the file itself; download the file"
    if start.startswith(b"\x80"):
        return "it is a pickle of the old torch format; load it and torch.save it again with a current torch"
    return f"it starts with {start!r}" if start else "it is empty"


def _map_safetensors(file: Path) -> dict[str, Tensor]:
    safetensors = require("safetensors")
    try:
        with safetensors.safe_open(file, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, ValueError) as error:
        raise TextError(f"{file} is truncated or corrupt ({error}); download it again") from error


def _map_torch(file: Path) -> dict[str, Tensor]:
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise TextError(
            f"{file} is not opened: it holds more than tensors, which could run code, or it is corrupt. "
            f"Download it from a source you trust, best as safetensors. ({str(error).splitlines()[0]})"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        raise TextError(f"{file} is truncated or corrupt ({str(error).splitlines()[0]}); download it again") from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise TextError(f"{file} should hold a dictionary of tensors, found {type(tensors).__name__}")
    return tensors
