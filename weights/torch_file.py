"""Reading of torch.save files, including the model's state dict inside a training checkpoint."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import torch
from torch import Tensor

from ..errors import CheckpointError
from .tensors import TensorEntry

_TRAINING_ONLY = re.compile("critic|discriminator|teacher|fake_score|optim", re.IGNORECASE)
"""Names of networks in a training checkpoint that are not used for generation."""
_SCALE = re.compile(r"(lora_|network_)?(alpha|scale|scaling)")
_MAX_DEPTH = 3
"""The maximum nesting depth of dictionaries around a model's tensors."""


def read_torch_file(path: Path) -> dict[str, TensorEntry]:
    """Return a torch.save file's tensors, memory-mapped. Raise CheckpointError if it is damaged or contains code."""
    state = _unwrap(path, _load(path))
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, expected a dictionary of tensors")
    other = [str(key) for key, value in state.items() if not (isinstance(key, str) and isinstance(value, Tensor))]
    if other:
        raise CheckpointError(
            f"{path}: {len(other)} values are not tensors ({', '.join(other[:3])}); "
            "expected a plain dictionary of tensors"
        )
    if strange := [name for name, tensor in state.items() if tensor.layout != torch.strided or tensor.is_meta]:
        raise CheckpointError(
            f"{path}: {len(strange)} tensors are sparse or without values ({', '.join(strange[:3])}), expected "
            "plain tensors"
        )
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    return {
        name: TensorEntry(name, path, tensor.dtype, tuple(tensor.shape), tensor) for name, tensor in tensors.items()
    }


def _unwrap(path: Path, state: object) -> object:
    """Return the nested state dict with the most tensors; `state` itself if no state dict is nested in it."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(state, dict) or not (found := _networks(state)):
            break
        most = max(map(_count_tensors, found.values()))
        largest = [key for key, network in found.items() if _count_tensors(network) == most]
        if len(largest) > 1:
            example = f"torch.save(torch.load(FILE, mmap=True)[{largest[0]!r}], NEW_FILE)"
            raise CheckpointError(
                f"{path}: holds several models ({', '.join(largest)}); save the right one by itself: {example}"
            )
        _refuse_scale(path, state, found[largest[0]])
        state = found[largest[0]]
    return state


def _refuse_scale(path: Path, parent: Mapping, network: Mapping) -> None:
    """Raise CheckpointError if `network` is a LoRA's state dict and `parent`, the dict around it, states a scale.
    Reading only `network` would lose the scale."""
    beside = {str(key): value for key, value in parent.items() if value is not network}
    config = (each for value in beside.values() if isinstance(value, Mapping) for each in value.items())
    stated = [str(key) for key, value in (*beside.items(), *config) if isinstance(value, int | float)]
    scale = next(filter(_SCALE.fullmatch, stated), None)
    if scale is not None and any("lora" in str(key).lower() for key in network):
        raise CheckpointError(
            f"{path}: states {scale} next to a LoRA's tensors, which is not read there; save the tensors as "
            "safetensors, with lora_alpha in the header or in an adapter_config.json"
        )


def _networks(state: dict) -> dict[str, dict]:
    """Return the nested dicts that contain tensors, by key. Networks for training only, such as a critic, are left out
    if other networks remain."""
    found = {str(key): value for key, value in state.items() if isinstance(value, dict) and _count_tensors(value)}
    return {key: value for key, value in found.items() if not _TRAINING_ONLY.search(key)} or found


def _count_tensors(value: object, depth: int = _MAX_DEPTH) -> int:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value) or not depth:
        return int(isinstance(value, Tensor))
    return sum(_count_tensors(each, depth - 1) for each in value.values())


def _load(path: Path) -> object:
    names: list[str] = []
    with suppress(Exception), ZipFile(path) as archive:  # torch.load reports a broken archive
        names = archive.namelist()
    if names and not any(name.endswith("data.pkl") for name in names):
        raise CheckpointError(
            f"{path}: cannot be read: a zip archive of other files ({', '.join(names)[:60]}), not "
            "torch.save's; unpack it, and name the weight file in it"
        )
    if path.suffix.lower() == ".safetensors":  # torch.load would read it as such
        raise CheckpointError(f"{path}: a file of torch.save by its content; rename it to {path.stem}.pt")
    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # a broken or hostile archive can raise anything
        culprit = re.search(r"GLOBAL (\S+)", str(error))
        if culprit:
            raise CheckpointError(
                f"{path}: cannot be read: refused, because it would run {culprit[1]}, and weight files hold tensors "
                "only. Use the safetensors file, or download it from a source that you trust"
            ) from error
        reason = str(error).strip().split("\n")[0][:200]
        raise CheckpointError(
            f"{path}: cannot be read as torch.save weights ({reason}): truncated or corrupt; download it again"
        ) from error
