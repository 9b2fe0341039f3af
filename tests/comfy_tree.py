"""Where this machine has a ComfyUI to test against.

Its tree is COMFYUI_PATH, else the ComfyUI this pack is installed in (`<ComfyUI>/custom_nodes/<pack>`), else
`${XDG_CACHE_HOME:-~/.cache}/lingbot-world/ComfyUI`. Its interpreter is COMFYUI_PYTHON, else `.venv` in it or beside it.
An interpreter without one of the packages of requirements.txt, which ComfyUI would install with this pack, is no host:
what fails there says nothing about this pack.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACK = Path(__file__).resolve().parent.parent
ASK = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        version(name)
    except PackageNotFoundError:
        print(name)
"""
"""A program that prints those of its arguments that are not installed."""


@dataclass(frozen=True)
class Host:
    """A ComfyUI tree and the Python that runs it."""

    root: Path
    python: Path


class HostMissingError(RuntimeError):
    """No ComfyUI on this machine; the message says where it was looked for, or what its Python lacks."""


def find_host() -> Host:
    """The ComfyUI to test against.

    Raises:
        HostMissingError: with the places that were tried, or with the command that installs what its Python lacks.
    """
    root, tried = _find_root()
    if root is None:
        raise HostMissingError(f"no ComfyUI (main.py) at {', '.join(map(str, tried))}; set COMFYUI_PATH")
    named = os.environ.get("COMFYUI_PYTHON")
    binaries = ["bin/python", "Scripts/python.exe"]
    pythons = [Path(named)] if named else [b / ".venv" / p for b in (root, root.parent) for p in binaries]
    for python in pythons:
        if python.is_file():
            missing = lacking(python)
            install = shlex.join([str(python), "-m", "pip", "install", *missing])
            if missing:
                raise HostMissingError(f"ComfyUI's Python lacks {', '.join(missing)} of requirements.txt: {install}")
            return Host(root, python)
    raise HostMissingError(f"no Python for {root} at {', '.join(map(str, pythons))}; set COMFYUI_PYTHON")


def lacking(python: Path) -> list[str]:
    """The lines of requirements.txt of whose packages a Python has no version at all."""
    lines = (PACK / "requirements.txt").read_text(encoding="utf-8").splitlines()
    names = [re.split(r"[^\w.-]", line)[0] for line in lines]
    asked = subprocess.run([python, "-E", "-c", ASK, *names], capture_output=True, text=True, check=True, timeout=60)
    return [line for line, name in zip(lines, names, strict=True) if name in asked.stdout.split()]


def _find_root() -> tuple[Path | None, list[Path]]:
    if named := os.environ.get("COMFYUI_PATH"):
        tried = [Path(named).expanduser()]
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        tried = [PACK.parent.parent] if PACK.parent.name == "custom_nodes" else []
        tried.append(cache / "lingbot-world" / "ComfyUI")
    return next((root for root in tried if (root / "main.py").is_file()), None), tried
