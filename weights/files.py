"""Finding and reading the tensors of a model, a text encoder or a VAE."""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath

from ..errors import CheckpointError
from .gguf_file import MAGIC, read_gguf
from .tensors import TensorEntry, read_error, read_safetensors
from .torch_file import read_torch_file

WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".gguf")
CHECKPOINT_PARTS = (
    *("model.diffusion_model.", "first_stage_model.", "vae.", "cond_stage_model.", "text_encoders."),
    *("conditioner.", "clip_vision.", "model_ema."),
)
"""The name prefixes of the models in a ComfyUI checkpoint file, such as diffusion model, VAE and text encoders."""
_WRAPPERS = re.compile(r"(?<![^.])(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
"""Parts of parameter names that FSDP, activation checkpointing and torch.compile add."""
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.[a-z]+)$")


def read_tensors(path: str | Path, hint: str = "") -> dict[str, TensorEntry]:
    """Return the tensors of a folder, file, shard or index, by tensor name. Read only headers. In a folder, prefer
    files with `hint` in their name. Raise CheckpointError for a damaged or unknown file."""
    entries: dict[str, TensorEntry] = {}
    for file in weight_files(Path(path).expanduser().absolute(), hint):
        found = {_WRAPPERS.sub("", name): entry for name, entry in _read_file(file).items()}
        twice = sorted(entries.keys() & found.keys())
        if twice:
            sample = ", ".join(twice[:3])
            raise CheckpointError(f"{file}: {len(twice)} tensors are in another shard as well ({sample})")
        entries |= found
    return entries


def shared_prefix(keys: Iterable[str], known_names: Iterable[str]) -> str:
    """Return the prefix, such as `module.`, that precedes one of `known_names` in `keys`. Return "" if no key has one,
    or if a key with a dot begins differently."""
    dotted = [key for key in keys if "." in key]
    found = [key.removesuffix(name) for name in known_names for key in dotted if key.endswith(f".{name}")]
    prefix = min(found, key=len, default="")
    return prefix if all(key.startswith(prefix) for key in dotted) else ""


def drop_other_parts(entries: dict[str, TensorEntry], prefixes: tuple[str, ...]) -> dict[str, TensorEntry]:
    """Return a ComfyUI checkpoint's entries except those of models with prefixes outside of `prefixes`. Names keep
    their prefixes. Return all entries if no name begins with one of `prefixes`."""
    others = tuple(prefix for prefix in CHECKPOINT_PARTS if prefix not in prefixes)
    if not any(key.startswith(prefixes) for key in entries):
        return entries
    return {key: entry for key, entry in entries.items() if not key.startswith(others)}


def weight_files(path: Path, hint: str) -> list[Path]:
    """Return a model's weight files. In a folder, files with `hint` in their names are preferred. Raise CheckpointError
    for a missing file or ambiguous folder."""
    if not path.exists():
        lost = f"a link to {path.readlink()}, which is not there" if path.is_symlink() else "no such file or folder"
        raise CheckpointError(f"{path}: {lost}")
    if path.is_dir():
        return _folder_files(hub_snapshot(path), hint)
    if not path.is_file():
        raise CheckpointError(f"{path}: a pipe or a device, expected a file of weights")
    if path.name.endswith(".index.json"):
        return _indexed_files(path)
    if shard := _SHARD.match(path.name):
        stem, count, suffix = shard[1], int(shard[3]), shard[4]
        return _check_existing(
            path, [path.with_name(f"{stem}-{n:05d}-of-{count:05d}{suffix}") for n in range(1, count + 1)]
        )
    return [path]


def hub_snapshot(folder: Path) -> Path:
    """Return the current or only snapshot of a Hugging Face cache repository. Return any other `folder` unchanged."""
    snapshots, main = folder / "snapshots", folder / "refs" / "main"
    if not (folder.name.startswith("models--") and snapshots.is_dir()):
        return folder
    found = sorted(item for item in snapshots.iterdir() if item.is_dir())
    named = main.read_text("utf-8", errors="replace").strip() if main.is_file() else ""
    wanted = [item for item in found if item.name == named] or found
    return wanted[0] if len(wanted) == 1 else folder


def list_visible(folder: Path) -> list[Path]:
    """Return the content of a folder, sorted by name, without hidden files."""
    return sorted(item for item in folder.iterdir() if not item.name.startswith("."))


def _folder_files(folder: Path, hint: str) -> list[Path]:
    indexes = sorted(folder.glob("*.index.json"))
    if indexes:
        # neither torch.save's files nor a variant such as model.fp16 where there is another
        return _indexed_files(min(indexes, key=lambda file: (".safetensors." not in file.name, len(file.name))))
    weights = [item for item in list_visible(folder) if item.suffix.lower() in WEIGHT_SUFFIXES and item.is_file()]
    weights = [item for item in weights if hint in item.name.lower()] or weights
    for suffix in WEIGHT_SUFFIXES:
        found = [item for item in weights if item.suffix.lower() == suffix]
        preferred = [item for item in found if item.stem == "model"] or found
        if preferred and (len(preferred) == 1 or _SHARD.match(preferred[0].name)):
            return weight_files(preferred[0], hint)
        if preferred:
            names = ", ".join(item.name for item in preferred[:5])
            raise CheckpointError(f"{folder}: several weight files ({names}); name the one to use")
    content = ", ".join(sorted(item.name for item in folder.iterdir())[:8]) or "nothing"
    lost = [item.name for item in folder.iterdir() if item.is_symlink() and not item.exists()]
    content += f"; {', '.join(lost[:3])} is a link to a file that is not there" if lost else ""
    left = unfinished_download(folder)
    raise CheckpointError(
        f"{folder}: no weights in this folder (it holds {content}); expected model.safetensors, "
        f"model.pt or a set of shards with their index{left and '; '}{left}"
    )


def unfinished_download(folder: Path) -> str:
    """Return a message if an interrupted `hf download` left files in `folder`, its parent folder, or the Hugging Face
    cache repository around `folder`. Otherwise return ""."""
    for place in (folder, folder.parent, *(parent / "blobs" for parent in folder.parents[1:2])):
        for part in (*place.glob("*.incomplete"), *place.glob(".cache/huggingface/download/**/*.incomplete")):
            return f"a download in {place} was not finished ({part.name}): the same `hf download` continues it"
    return ""


def _indexed_files(index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{index}: no weight_map in this index of shards; download it again")
    elsewhere = next((name for name in names.values() if PureWindowsPath(name).name != name), None)
    if elsewhere is not None:
        raise CheckpointError(
            f"{index}: names {elsewhere!r:.200}, expected the name of a file next to it; download it "
            "again, from a source that you trust"
        )
    return _check_existing(index, [index.parent / name for name in sorted(set(names.values()))])


def _check_existing(path: Path, files: list[Path]) -> list[Path]:
    # Unlike Path.is_file, os.path.isfile accepts any name that an index may contain, also one that is too long.
    absent = [file.name for file in files if not os.path.isfile(file)]
    if absent:
        raise CheckpointError(
            f"{path.name}: {len(absent)} of its {len(files)} shards missing in {path.parent}: "
            f"{', '.join(absent[:5]):.500}; {unfinished_download(path.parent) or 'download them'}"
        )
    return files


def _read_file(file: Path) -> dict[str, TensorEntry]:
    try:
        with file.open("rb") as opened:
            start = opened.read(64)
    except OSError as error:
        raise read_error(file, error) from error
    if start.startswith(b"PK\x03\x04"):
        return read_torch_file(file)
    if start.startswith(MAGIC):
        return read_gguf(file)
    if file.suffix == ".incomplete":
        raise CheckpointError(f"{file}: an unfinished download; the same `hf download` goes on with it")
    _refuse_other_formats(file, start)
    if start[8:9] == b"{" or file.suffix == ".safetensors":
        return read_safetensors(file)
    raise CheckpointError(
        f"{file}: cannot be read: neither safetensors, GGUF nor torch.save's zip format (it starts with "
        f"{start[:12]!r}); save it again with a current torch, or use the safetensors file"
    )


def _refuse_other_formats(file: Path, start: bytes) -> None:
    if not start:
        raise CheckpointError(f"{file}: the file is empty; download it again")
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{file}: a git-lfs pointer, not the weights; fetch them with `git lfs pull`")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{file}: a web page, not weights; the download went wrong, download it again")


def read_json(path: Path, *, optional: bool = False) -> dict:
    """Return the object in a JSON file, or {} if `optional` and missing. Raise CheckpointError for other content."""
    if optional and not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))  # Windows editors write a byte order mark first
    except OSError as error:
        raise read_error(path, error) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found a {type(content).__name__}")
    return content
