"""Files of causal models' states, written in ComfyUI's output folder and read there and in its input folder.

Names may come from a stranger's workflow, so they are resolved in these folders only."""

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
"""The suffix of a state's file, and the mark that ComfyUI adds to names in the output folder."""


def save(state: WorldState, prefix: str) -> Path:
    """Write a state to a new file in the output folder, named by `prefix` and the next free number as in ComfyUI's own
    savers. Return the file. Raises InputError."""
    check_prefix(prefix)
    folder, name, counter, _, _ = folder_paths.get_save_image_path(prefix, folder_paths.get_output_directory())
    path = Path(folder) / f"{name}_{counter:05}_{SUFFIX}"
    state.save(path)
    return path


def check_prefix(prefix: str) -> None:
    """Raise InputError for a prefix that leads out of the output folder."""
    parts_of(prefix, "state", "output folder")


def choices() -> list[str]:
    """Return the names of the states in the input folder and, with OF_OUTPUT appended, in the output folder."""
    found = []
    for root, mark in _roots():
        files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(SUFFIX))
        found += [name + mark for name in sorted(file.relative_to(root).as_posix() for file in files)]
    return found


def load(name: str) -> WorldState:
    """Return the state `name`. Raises InputError for a file that is missing or outside of its folder, and
    CheckpointError for an incomplete state."""
    from ...pipeline.state import load_state  # not at the start of ComfyUI: it imports the model

    return load_state(resolve(name))


def resolve(name: str) -> Path:
    """Return the file of the state `name`. Raises InputError for a name that leaves its folder, also through a link."""
    root, mark = next((root, mark) for root, mark in reversed(_roots()) if name.endswith(mark))
    path = root.joinpath(*parts_of(name.removesuffix(mark), "state", f"{root.name} folder"))
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: a link that leaves ComfyUI's {root.name} folder; put the file itself there")
    return path


def _roots() -> tuple[tuple[Path, str], ...]:
    """Return ComfyUI's input and output folder, each with the mark that names in it end with."""
    return (Path(folder_paths.get_input_directory()), ""), (Path(folder_paths.get_output_directory()), OF_OUTPUT)
