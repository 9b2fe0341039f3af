"""Searches below ComfyUI's model folders, safe for untrusted names."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path

import folder_paths

from ...errors import InputError
from .names import split_path

SHARD = re.compile(r"-(\d{5})-of-\d{5}\.[a-z]+$")
"""The end of a shard's file name, such as "-00001-of-00003.safetensors". The group is the shard's number, from 1."""


def resolve(name: str, model_folders: tuple[str, ...], label: str, exists: Callable[[Path], bool]) -> Path:
    """Return the first path of `name` in the model folders for which `exists` is true. Raise InputError if there is
    none. The message calls the file `label`."""
    parts = split_path(name, label)
    roots = [Path(root) for folder in model_folders for root in folder_paths.get_folder_paths(folder)]
    try:
        found = next((path for path in (root.joinpath(*parts) for root in roots) if exists(path)), None)
    except OSError as error:
        raise InputError(f"{label} {name!r}: {error.filename}: {error.strerror}; check its rights") from error
    if found is not None:
        return found
    places = ", ".join(map(str, roots))
    raise InputError(f"the {label} {name!r} was not found in {places}: put it there, or choose another")


def fingerprint(paths: Iterable[Path | str | None]) -> str:
    """Return a string of the path, mtime and size of each file in `paths`, folders included recursively. The string
    changes when a file changes. A None in `paths` is skipped. Raise OSError for a missing path."""
    files: list[Path] = []
    for path in (Path(path) for path in paths if path is not None):
        files += sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    stats = ((file, file.stat()) for file in files)
    return ";".join(f"{file}:{stat.st_mtime_ns}:{stat.st_size}" for file, stat in stats)


def probe_folder(path: Path) -> bool:
    """Whether `path` is a folder. Raise OSError for a folder that cannot be read."""
    if not path.is_dir():
        return False
    with os.scandir(path):
        os.stat(os.path.join(path, os.curdir))
    return True


def is_true_of(look: Callable[[Path], object], path: Path) -> bool:
    """Return `bool(look(path))`. If `look` raises OSError, log the error once and return False."""
    try:
        return bool(look(path))
    except OSError as error:
        _log_once(f"{error.filename or path}: {error.strerror or error}; files there are not listed")
        return False


@lru_cache(256)
def _log_once(words: str) -> None:
    logging.warning("LingBot-World: %s", words)


def merge_shards(names: Iterable[str]) -> set[str]:
    """Return `names` with shards replaced by their folder. Of shards without a folder, only the first is kept."""
    parts = ((name, name.rpartition("/")[0], SHARD.search(name)) for name in names)
    return {shard and folder or name for name, folder, shard in parts if not shard or folder or int(shard[1]) == 1}


def sort_by_patterns(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    def rank(name: str) -> int:
        return next((at for at, pattern in enumerate(patterns) if fnmatch(name.lower(), pattern)), len(patterns))

    return sorted(names, key=lambda name: (rank(name), name))
