"""States of causal models as files in ComfyUI's folders: written below its output folder, read there and in the input
folder. Names may come from a stranger's workflow: they lead nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import folder_paths

from ...errors import InputError
from .names import parts_of

if TYPE_CHECKING:
    from ...pipeline.state import WorldState

SUFFIX, OF_OUTPUT = ".state", " [output]"
"""Of a state's file; of the name of one in the output folder, as ComfyUI writes such names."""


def save(state: WorldState, prefix: str) -> Path:
    """Writes a state below the output folder under the next free number, as ComfyUI's own savers do; returns the file.
    Raises InputError."""
    check_prefix(prefix)
    folder, name, counter, _, _ = folder_paths.get_save_image_path(prefix, folder_paths.get_output_directory())
    path = Path(folder) / f"{name}_{counter:05}_{SUFFIX}"
    state.save(path)
    return path


def check_prefix(prefix: str) -> None:
    """Raises InputError for a prefix that leads out of the output folder."""
    parts_of(prefix, "state", "output folder")


def choices() -> list[str]:
    """Names of the states in the input folder and, with `[output]` behind them, in the output folder."""
    found = []
    for root, mark in _roots():
        files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(SUFFIX))
        found += [name + mark for name in sorted(file.relative_to(root).as_posix() for file in files)]
    return found


def load(name: str) -> WorldState:
    """Raises InputError, CheckpointError for what is not there, not below its folder, or no whole state."""
    from ...pipeline.state import load_state  # not at the start of ComfyUI: it imports the model

    return load_state(resolve(name))


def resolve(name: str) -> Path:
    """The file of a name. Raises InputError for one that leaves its folder, by a link too."""
    root, mark = next((root, mark) for root, mark in reversed(_roots()) if name.endswith(mark))
    path = root.joinpath(*parts_of(name.removesuffix(mark), "state", f"{root.name} folder"))
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: a link that leaves ComfyUI's {root.name} folder; put the file itself there")
    return path


def _roots() -> tuple[tuple[Path, str], ...]:
    """ComfyUI's folders, and what stands behind the names of files in each."""
    return (Path(folder_paths.get_input_directory()), ""), (Path(folder_paths.get_output_directory()), OF_OUTPUT)
