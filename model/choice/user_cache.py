"""JSON files in the user's cache folder. Results of kernel tests are stored in cards.json, or at the path in
LINGBOT_WORLD_CARDS."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ...errors import InputError
from ...outputs import written_whole
from .card import Card
from .table import MODULES

VARIABLE, NAME = "LINGBOT_WORLD_CARDS", "cards.json"
MAX_ENTRIES = 20
"""The maximum number of entries in the file. Each entry is for one combination of GPU, driver and package versions."""


def cache_path(variable: str, name: str) -> Path | None:
    """Return the value of the environment variable `variable` as a path, or None if the value is empty. If the variable
    is not set, return the path of `name` in this project's folder of the user's cache."""
    named = os.environ.get(variable)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lingbot-world" / name


def key_of(card: Card) -> str:
    """Return the key of a GPU's entry: its name, the platform, the driver and package versions."""
    return " | ".join(
        [card.known_as, sys.platform, f"driver {driver_version()}", *(f"{k} {v}" for k, v in versions().items())]
    )


@lru_cache
def versions() -> dict[str, str]:
    """Return the versions of torch, this project and the installed kernel packages, by name on PyPI."""
    found = {"torch": str(torch.__version__)}
    for package in (*MODULES, "triton-windows", "lingbot-world"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@lru_cache
def driver_version() -> str:
    """Return the newest CUDA version that the driver supports, such as "13.0", or the HIP version; "none" without a
    GPU, or "not known"."""
    if not torch.cuda.is_available():
        return "none"
    if torch.version.hip is not None:
        return str(torch.version.hip)
    with suppress(AttributeError, RuntimeError):
        library: Any = torch._C
        number = library._cuda_getDriverVersion()
        return f"{number // 1000}.{number % 1000 // 10}"
    return "not known"


def read(card: Card, name: str) -> Any:
    """Return the value that `store` stored for a GPU under `name`, or None."""
    return _file().get(key_of(card), {}).get(name)


def read_all(card: Card) -> dict[str, Any]:
    """Return all stored values of a GPU by name."""
    return _file().get(key_of(card), {})


def store(card: Card, name: str, value: Any) -> None:
    """Store a JSON value under `name` for a GPU. Errors in writing the file are ignored."""
    cards = _file()
    own = cards.pop(key_of(card), {})
    cards[key_of(card)] = own | {name: value}
    write_json(cache_path(VARIABLE, NAME), dict(list(cards.items())[-MAX_ENTRIES:]))


def _file() -> dict[str, dict[str, Any]]:
    found = read_json(cache_path(VARIABLE, NAME))
    return found if all(isinstance(each, dict) for each in found.values()) else {}


def read_json(file: Path | None) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if `file` is None, missing or invalid."""
    with suppress(OSError, ValueError):
        if file is not None and file.is_file():  # a device may have no end
            found = json.loads(file.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
    return {}


def write_json(file: Path | None, values: dict[str, Any]) -> None:
    """Write a JSON object to a file atomically, or nothing if `file` is None. Errors are ignored."""
    with suppress(OSError, InputError):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(file) as (part,):
                part.write_text(json.dumps(values), encoding="utf-8")
