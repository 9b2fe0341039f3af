"""Functions of the node that quantizes models: the choices, the folder of the result, progress and interruption."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import comfy.model_management
import comfy.utils
import folder_paths

from ...errors import CheckpointError, DependencyError, InputError
from ...loaders.package import find_package, is_causal_folder, is_model_folder
from ...options import Progress
from ...weights.files import read_tensors
from ...weights.quantized import component_owner
from . import folders
from .names import new_parts
from .search import fingerprint, resolve

_MODEL = "patch_embedding.weight"
_TEXT_ENCODER = ("token_embedding.weight", "shared.weight", "embed_tokens.weight", "token_embd.weight")


def source_choices() -> list[str]:
    """Return the names of all models and text encoders that are not already in 4 bits."""
    causal = (name.removesuffix(f"/{folders.SHARDS}") for name in folders.causal_choices())
    names = {*folders.package_choices(), *causal, *folders.expert_choices(), *folders.text_encoder_choices()}
    return sorted(name for name in names if _can_quantize(resolve_source(name)))


def resolve_source(name: str) -> Path:
    """Return the path of a model in `source_choices`. Raise InputError if it is missing."""
    return resolve(name, ("diffusion_models", folders.PACKAGES, "text_encoders"), "model", Path.exists)


def new_package(name: str) -> Path:
    """Return the path for a new folder in `models/lingbot_world`. Raise InputError if the name is invalid or taken."""
    parts = new_parts(name, "folder")
    roots = [Path(root) for root in folder_paths.get_folder_paths(folders.PACKAGES)]
    there = next((folder for folder in (root.joinpath(*parts) for root in roots) if folder.exists()), None)
    if there is not None:
        raise InputError(f"`name`: {there} exists already; choose another name, or remove it")
    return roots[0].joinpath(*parts)


def lora_choices() -> list[str]:
    return [name.replace(os.sep, "/") for name in folder_paths.get_filename_list("loras")]


def device() -> str:
    """Return the name of ComfyUI's device, such as "cuda:0", if it is a CUDA device, else "cpu"."""
    chosen = comfy.model_management.get_torch_device()
    return str(chosen) if chosen.type == "cuda" else "cpu"


@contextmanager
def show_stage(_name: str, _unit: str) -> Iterator[Progress]:
    """Yield a callback `progress(done, total)` for the node's progress bar. `_name` and `_unit` are ignored. The
    callback raises ComfyUI's interrupt exception if the user cancels."""
    bar = comfy.utils.ProgressBar(1)

    def update(done: int, total: int) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        bar.update_absolute(done, total)

    yield update


def _can_quantize(path: Path) -> bool:
    try:
        models = [path]
        if path.is_dir() and (is_causal_folder(path) or not is_model_folder(path)):
            package = find_package(path)
            models = [*(package.experts or ()), *([package.causal] if package.causal else [])]
        return any(_holds_quantizable(model, fingerprint([model])) for model in models)
    except (CheckpointError, DependencyError, OSError):
        return True


@lru_cache(1024)
def _holds_quantizable(path: Path, _fingerprint: str) -> bool:
    """Whether `path` holds a model or text encoder not yet in 4 bits. `_fingerprint` is only part of the cache key."""
    names = list(read_tensors(path))
    known = any(name.endswith((_MODEL, *_TEXT_ENCODER)) for name in names)
    return known and not any(map(component_owner, names))
