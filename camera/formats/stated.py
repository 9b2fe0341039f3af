"""Detection of texts in a camera file that state the matrix convention or the kind of lens."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CameraError
from ...fields import Field
from ..conventions import CONVENTIONS
from .matrices import DIRECTIONS, direction_of, named_matrices
from .reading import read_json

CONVENTION_KEYS = re.compile(r"convention|coord(inate)?s?_?(system|frame)?$|^axes$|_type$|hand", re.IGNORECASE)
MATRIX_NAME = "matrix_type"
"""The key in the result of `stated_texts` for the name of a file's pose matrices, such as c2w."""
LENS_KEYS = re.compile(r"model|projection|lens|camera_?type|^type$", re.IGNORECASE)
AXES = {"opencv": r"open_?cv|colmap|\brdf\b", "opengl": r"open_?gl|blender|nerf|arkit|\brub\b"}
OTHER_AXES = re.compile(r"unity|unreal|left[ _-]?hand|directx|\b(ros|flu|frd|ned|lhs)\b", re.IGNORECASE)
"""A pattern for texts that state unsupported axes: left-handed axes, or the axes of robots (ROS)."""
OTHER_LENS = re.compile(r"fish_?eye|equirect|panoram|spherical|omni|ortho", re.IGNORECASE)
TABLES, HEADER = (".txt", ".csv", ".tum"), 4096
"""The suffixes of tables of numbers (TABLES), and the number of characters in which a header is searched for
(HEADER)."""
NO_HEADER = re.compile(r"^\s*[-\d.]|://")
"""A pattern for lines of a table other than its header: numbers, and a video's address (RealEstate10K)."""
FIELDS = (
    Field(
        ("camera_convention", "coordinate_system", "extrinsic_type"),
        "refused",
        "Where a text states other axes or another direction than the format's: `--convention` names the right one.",
    ),
    Field(("c2w or w2c in a table's header",), "refused", "The same."),
    Field(("model", "camera_model", "projection"), "refused", "A fisheye or panorama; `--fov_deg` replaces the lens."),
)


def stated_texts(path: Path, names: bool = False) -> dict[str, str]:
    """Return the texts in a file that may state its convention or lens, by key; {} for other files than JSON, .npz and
    text.

    `path`: the file, or a folder with transforms.json or cameras.json. The texts of a JSON file are those of its header
    and first frame. The texts of an .npz file are those about the convention. The text of a text file is the direction
    in its header. With `names`, the key MATRIX_NAME has the name of a JSON file's pose matrices. Raises CameraError for
    invalid JSON.
    """
    file = next((path / name for name in ("transforms.json", "cameras.json") if (path / name).is_file()), path)
    found: dict[str, Any] = {}
    if file.suffix.lower() == ".json" and file.is_file():
        data = read_json(file)
        frames = (
            data
            if isinstance(data, list)
            else next(filter(_is_frames, data.values() if isinstance(data, Mapping) else ()), [])
        )
        for each in (*frames[:1], data):
            found |= each if isinstance(each, Mapping) else {}
        if names and (named := named_matrices(data, file)) is not None:
            found[MATRIX_NAME] = named.key
    elif file.suffix.lower() in TABLES and file.is_file():
        with file.open(encoding="utf-8", errors="replace") as opened:
            header = [line for line in opened.read(HEADER).splitlines() if not NO_HEADER.search(line)]
        found["convention in the header"] = next(filter(None, map(_only_direction, header)), None)
    elif file.suffix.lower() == ".npz" and file.is_file():
        with suppress(Exception), np.load(file, allow_pickle=False) as archive:  # the format's reader reports damage
            found = {name: archive[name].item() for name in archive.files if CONVENTION_KEYS.search(name)}
    return {str(key): value for key, value in found.items() if isinstance(value, str)}


def _only_direction(line: str) -> str:
    """Return the direction, "c2w" or "w2c", in a line; an empty string if the line states none or both."""
    plain = re.sub(r"[^a-z0-9]", "", line.lower())
    found = [direction for direction, pattern in DIRECTIONS.items() if re.search(pattern, plain)]
    return found[0] if len(found) == 1 else ""


def _is_frames(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def stated_convention(texts: Mapping[str, str], own: str, where: str) -> str:
    """Return the convention that a file's `texts` state, or an empty string if axes or direction remain unknown.

    `own`, the format's convention or empty, supplies what the texts omit. Raises CameraError, which begins with
    `where`, for unsupported axes and for a convention other than `own`. The user must then choose a convention, because
    a text about axes may also describe the axes of the images.
    """
    axes, direction = own.split("_") if own else ("", "")
    for key, text in texts.items():
        if not CONVENTION_KEYS.search(key):
            continue
        if OTHER_AXES.search(f"{text} {key}"):
            raise CameraError(
                f"{where}: {key} is {text!r:.40}: left-handed axes and robots' axes are not read; export it for "
                f"OpenCV or Blender, or name the axes that it has with `convention`, one of {', '.join(CONVENTIONS)}"
            )
        stated = f"{_matching(AXES, text) or axes}_{direction_of(text) or direction}"
        if own and stated != own:
            raise CameraError(
                f"{where}: {key} is {text!r:.40}, and this format is read as {own}: name the right one with "
                f"`convention`, {stated} or {own}"
            )
        axes, direction = stated.split("_")
    found = f"{axes}_{direction}"
    return found if found in CONVENTIONS else own


def lens_fault(texts: Mapping[str, str], where: str) -> str:
    """Return a message, which begins with `where`, if a text states a lens other than a pinhole, else ""."""
    stated = [(key, text) for key, text in texts.items() if LENS_KEYS.search(key) and OTHER_LENS.search(text)]
    return f"{where}: {stated[0][0]} {stated[0][1]!r:.60} is no pinhole camera" if stated else ""


def _matching(kinds: Mapping[str, str], text: str) -> str:
    return next((kind for kind, pattern in kinds.items() if re.search(pattern, text, re.IGNORECASE)), "")
