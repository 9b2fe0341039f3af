"""Files with the state of a causal model's video, in ComfyUI's output and input folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import folder_paths

from ...errors import InputError
from .names import split_path

if TYPE_CHECKING:
    from ...pipeline.state import WorldState

SUFFIX, OF_OUTPUT = ".state", " [output]"
"""The suffix of a state file, and the mark that ComfyUI appends to the names of files in its output folder."""


def save(state: WorldState, prefix: str) -> Path:
    """Write a state to a new numbered file in ComfyUI's output folder. Raise InputError for an invalid prefix."""
    check_prefix(prefix)
    folder, name, counter, _, _ = folder_paths.get_save_image_path(prefix, folder_paths.get_output_directory())
    path = Path(folder) / f"{name}_{counter:05}_{SUFFIX}"
    state.save(path)
    return path


def check_prefix(prefix: str) -> None:
    """Raise InputError for a prefix that leads out of the output folder."""
    split_path(prefix, "state", "output folder")


def choices() -> list[str]:
    """Return the names of all state files in ComfyUI's input folder, then those in its output folder. A name from the
    output folder ends with OF_OUTPUT (" [output]")."""
    found = []
    for root, mark in _roots():
        files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names if name.endswith(SUFFIX))
        found += [name + mark for name in sorted(file.relative_to(root).as_posix() for file in files)]
    return found


def load(name: str) -> WorldState:
    """Return the state in a file. Raise InputError if the file is missing or outside ComfyUI's folders, CheckpointError
    if it is damaged."""
    from ...pipeline.state import load_state  # not at the start of ComfyUI: it imports the model

    return load_state(resolve(name))


def resolve(name: str) -> Path:
    """Return the path of the state file `name` in ComfyUI's input or output folder. The file may not exist. Raise
    InputError if it is outside the folder."""
    name = str(name)
    root, mark = next((root, mark) for root, mark in reversed(_roots()) if name.endswith(mark))
    path = root.joinpath(*split_path(name.removesuffix(mark), "state", f"{root.name} folder"))
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{path}: a link that leaves ComfyUI's {root.name} folder; put the file itself there")
    return path


def _roots() -> tuple[tuple[Path, str], ...]:
    return (Path(folder_paths.get_input_directory()), ""), (Path(folder_paths.get_output_directory()), OF_OUTPUT)
