"""Where this machine has a ComfyUI to test against.

Its tree is COMFYUI_PATH, else the ComfyUI this pack is installed in (`<ComfyUI>/custom_nodes/<pack>`), else
`${XDG_CACHE_HOME:-~/.cache}/lingbot-world/ComfyUI`. Its interpreter is COMFYUI_PYTHON, else `.venv` in it or beside it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PACK = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Host:
    """A ComfyUI tree and the Python that runs it."""

    root: Path
    python: Path


class HostMissingError(RuntimeError):
    """No ComfyUI on this machine; the message says where it was looked for."""


def find_host() -> Host:
    """The ComfyUI to test against.

    Raises:
        HostMissingError: with the places that were tried.
    """
    root, tried = _find_root()
    if root is None:
        raise HostMissingError(f"no ComfyUI (main.py) at {', '.join(map(str, tried))}; set COMFYUI_PATH")
    named = os.environ.get("COMFYUI_PYTHON")
    binaries = ["bin/python", "Scripts/python.exe"]
    pythons = [Path(named)] if named else [b / ".venv" / p for b in (root, root.parent) for p in binaries]
    for python in pythons:
        if python.is_file():
            return Host(root, python)
    raise HostMissingError(f"no Python for {root} at {', '.join(map(str, pythons))}; set COMFYUI_PYTHON")


def _find_root() -> tuple[Path | None, list[Path]]:
    if named := os.environ.get("COMFYUI_PATH"):
        tried = [Path(named).expanduser()]
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        tried = [PACK.parent.parent] if PACK.parent.name == "custom_nodes" else []
        tried.append(cache / "lingbot-world" / "ComfyUI")
    return next((root for root in tried if (root / "main.py").is_file()), None), tried
