"""Which files make up a checkpoint: one file, a set of shards, or a folder with either."""

import json
import re
from pathlib import Path

from ..errors import CheckpointError

WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.[a-z]+)$")


def weight_files(path: Path) -> tuple[Path, ...]:
    """The weight files behind `path`: a folder, a file, one shard of a set, or an index.

    safetensors come before .pt. Raises CheckpointError naming what is missing.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    if path.is_dir():
        return _folder_files(path)
    if path.name.endswith(".index.json"):
        return _indexed_files(path)
    if shard := _SHARD.match(path.name):
        return _shard_files(path, shard)
    return (path,)


def _folder_files(folder: Path) -> tuple[Path, ...]:
    indexes = sorted(folder.glob("*.index.json"))
    if indexes:
        return _indexed_files(indexes[0])
    for suffix in WEIGHT_SUFFIXES:
        found = sorted(item for item in folder.glob(f"*{suffix}") if item.is_file())
        preferred = [item for item in found if item.stem == "model"] or found
        if preferred and (len(preferred) == 1 or _SHARD.match(preferred[0].name)):
            return weight_files(preferred[0])
        if preferred:
            names = ", ".join(item.name for item in preferred[:5])
            raise CheckpointError(f"{folder}: several weight files ({names}); give the one that is meant")
    content = ", ".join(sorted(item.name for item in folder.iterdir())[:8]) or "nothing"
    raise CheckpointError(f"{folder}: no weights in this folder (it holds {content}); expected model.safetensors, "
                          "model.pt or diffusion_pytorch_model-*.safetensors with their index")  # fmt: skip


def _indexed_files(index: Path) -> tuple[Path, ...]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{index.name}: no weight_map in this index; get it again")
    # Only the last part of each name counts: an index must not lead out of its folder.
    return _existing(index, [index.with_name(Path(name).name) for name in sorted(set(names.values()))])


def _shard_files(path: Path, shard: re.Match) -> tuple[Path, ...]:
    stem, count, suffix = shard[1], int(shard[3]), shard[4]
    return _existing(path, [path.with_name(f"{stem}-{n:05d}-of-{count:05d}{suffix}") for n in range(1, count + 1)])


def _existing(path: Path, files: list[Path]) -> tuple[Path, ...]:
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise CheckpointError(f"{path.name}: {len(absent)} of its {len(files)} shards missing in {path.parent}: "
                              f"{', '.join(absent[:5])}")  # fmt: skip
    return tuple(files)


def read_json(path: Path) -> dict:
    """A JSON object from a small file. Raises CheckpointError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found a {type(content).__name__}")
    return content
