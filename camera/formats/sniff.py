"""Detection of a camera file's format, and of texts that state its matrix convention or lens."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PureWindowsPath
from typing import IO, Any
from zipfile import ZipFile

import numpy as np

from ...errors import CameraError
from ...fields import Field
from ..conventions import CONVENTIONS
from .colmap import COLMAP_FILES, model_folder
from .matrices import DIRECTIONS, are_frames, array_direction, axes_of, direction_of, named_matrices
from .reading import CONVENTION_KEYS, is_number, read_json, split_columns
from .scans import PARTS, POSES, scan_folder
from .tables import pose_files, tum_columns

HEAD = 64 * 2**10  # bytes inspected at the start and at the end of a file
KEYS = {
    "transform_matrix": "transforms",
    "camera_path": "camera_path",
    "render_width": "camera_path",
    "matrices": "matrices",
    **dict.fromkeys((*POSES, PARTS[0], "poses", "perFrameIntrinsicCoeffs"), "arkit"),
}
"""JSON keys, each with the format that it identifies."""
ARRAYS = {"c2w": "megasam", "w2c": "vggt"}
"""The .npz formats by the direction in an array's name: camera-to-world (c2w) or world-to-camera (w2c)."""
COLUMNS = {19: "realestate10k", **dict.fromkeys((12, 16, 13, 17, 4), "kitti"), 8: "tum"}
FOLDERS = {"transforms.json": "transforms", "cameras.json": "gaussian_splatting"}
MATRIX_NAME = "matrix_type"
"""A key in the result of `stated_texts`. Its value is the name of the pose matrices in the file, such as "c2w"."""
LENS_KEYS = re.compile(r"model|projection|lens|camera_?type|^type$", re.IGNORECASE)
LEFT_HANDED = re.compile(r"(?<![a-z])(?:unity|unreal)|left[ _-]?hand|directx|\blhs\b", re.IGNORECASE)
OTHER_AXES = re.compile(rf"{LEFT_HANDED.pattern}|\b(ros|flu|frd|ned)\b", re.IGNORECASE)
"""A pattern for texts that state unsupported axes: left-handed ones, or those of robotics and aerospace."""
OTHER_LENS = re.compile(r"fish_?eye|equirect|panoram|spherical|omni|ortho", re.IGNORECASE)
TABLE_SUFFIXES = (".txt", ".csv", ".tum")
HEADER_LENGTH = 4096  # the characters of a table that may hold its header
NO_HEADER = re.compile(r"^\s*[-\d.]|://")
"""A pattern for a table's lines that begin with a number or contain a URL, and so are not its header."""
FIELDS = (
    Field(
        ("camera_convention", "coordinate_system", "extrinsic_type"),
        "refused",
        "Where a text states other axes or another direction than the format's: `--convention` names the right one.",
    ),
    Field(("c2w, w2c, Unity or Unreal in a table's header",), "refused", "The same."),
    Field(("model", "camera_model", "projection"), "refused", "A fisheye or panorama; `--fov_deg` replaces the lens."),
)


def looks_like_poses(path: Path) -> bool:
    """Whether a file is a readable .npy with the shape of pose matrices, [n, 4, 4] or [n, 3, 4]."""
    return _array_shape(path)[1:] in ((4, 4), (3, 4))


def looks_like_lens(path: Path) -> bool:
    """Whether a file is a readable .npy with the shape of a lens, [n, 4] or [4]."""
    shape = _array_shape(path)
    return len(shape) in (1, 2) and shape[-1] == 4


def looks_like_camera(path: Path) -> bool:
    """Whether a path is recognised as a camera file or folder. An .npy file is recognised only if it has the shape of
    pose matrices."""
    return format_of(path) is not None and (path.suffix != ".npy" or looks_like_poses(path))


def format_of(path: Path) -> str | None:
    """Return the detected format of a file or folder, a name in FORMATS, or None."""
    with suppress(OSError):
        if path.is_dir():
            return _folder(path)
        if path.name in COLMAP_FILES:
            return "colmap"
        detect = _DETECTORS.get(path.suffix.lower())
        return None if detect is None else detect(path)
    return None


def _folder(path: Path) -> str | None:
    if (path / "poses.npy").is_file():
        return "lingbot"
    if format := next((format for name, format in FOLDERS.items() if (path / name).is_file()), None):
        return format
    if any((model_folder(path) / name).is_file() for name in COLMAP_FILES):
        return "colmap"
    if scan_folder(path) is not None:
        return "arkit"
    return "kitti" if len(pose_files(path)) > 1 else None


def _array_shape(path: Path) -> tuple[int, ...]:
    try:
        with path.open("rb") as file:
            return array_header(file)[0]
    except OSError:
        return ()


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], str]:
    """Return an .npy header's shape and dtype kind, such as "f"; () and "" if the header is invalid or the array is
    pickled."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    except Exception:  # numpy parses the header as Python, so any error of its tokenizer and parser can occur
        return (), ""
    return ((), "") if kind.hasobject else (shape, kind.kind)


def _archive(path: Path) -> str | None:
    with suppress(Exception), ZipFile(path) as archive:  # zipfile raises errors of many types
        names = {Path(name).stem for name in archive.namelist()}
        directions = {*map(direction_of, names)} - {""} or {*map(array_direction, names)}
        if "inds" not in names:
            return next((format for direction, format in ARRAYS.items() if direction in directions), None)
        with archive.open("data.npy") as data:
            return "vipe" if array_header(data)[0][1:] == (4, 4) else None
    return None


def _zipped(path: Path) -> str | None:
    with suppress(Exception), ZipFile(path) as archive:  # zipfile raises errors of many types
        return "lingbot" if "poses.npy" in {PureWindowsPath(name).name for name in archive.namelist()} else None
    return None


def _json(path: Path) -> str | None:
    head = _head(path).lstrip()
    if re.match(r"\[\s*[\[\d-]", head):
        return "matrices"
    named = "matrices" if any(map(direction_of, re.findall(r'"(\w+)"\s*:', head))) else None
    splats = "gaussian_splatting" if all(f'"{key}"' in head for key in ("position", "rotation")) else None
    return next((format for key, format in KEYS.items() if f'"{key}"' in head), named or splats)


def _text(path: Path) -> str | None:
    every = _head(path).splitlines()
    lines = [split_columns(line) for line in (each.partition("#")[0] for each in every) if line.strip()]
    rows = [columns for columns in lines if is_number(columns[0])][:3]
    if (named := tum_columns(every)) is not None and named.total in map(len, rows):
        return "tum"
    counts = (len(columns) for columns in rows if all(map(is_number, columns)))
    return next((COLUMNS[count] for count in counts if count in COLUMNS), None)


def _head(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(HEAD, path.stat().st_size - HEAD))
        return (head + file.read()).decode("utf-8-sig", errors="replace")


_DETECTORS: dict[str, Callable[[Path], str | None]] = {
    ".npy": lambda _: "lingbot",
    ".npz": _archive,
    ".zip": _zipped,
    ".json": _json,
    ".txt": _text,
    ".csv": _text,
    ".tum": _text,
}
"""For each file suffix, a function that returns the name of a file's format, or None if the format is unknown."""


def stated_texts(path: Path, matrix_name: bool = False) -> dict[str, str]:
    """Return the texts in a file that may state its convention or lens, by their keys in the file. `matrix_name`:
    whether to add the key of the pose matrices, under MATRIX_NAME."""
    file = next((path / name for name in ("transforms.json", "cameras.json") if (path / name).is_file()), path)
    found: dict[str, Any] = {}
    if file.suffix.lower() == ".json" and file.is_file():
        data = read_json(file)
        listed = (data, *(data.values() if isinstance(data, Mapping) else ()))
        frames: list[Mapping] = next(filter(are_frames, listed), [])
        for each in (*frames[:1], data):
            found |= each if isinstance(each, Mapping) else {}
        if matrix_name and (named := named_matrices(data, file)) is not None:
            found[MATRIX_NAME] = named.key
    elif file.suffix.lower() in TABLE_SUFFIXES and file.is_file():
        with file.open(encoding="utf-8", errors="replace") as opened:
            header = [line for line in opened.read(HEADER_LENGTH).splitlines() if not NO_HEADER.search(line)]
        found["convention in the header"] = next(filter(None, map(_convention_in, header)), None)
    elif file.suffix.lower() == ".npz" and file.is_file():
        with suppress(Exception), np.load(file, allow_pickle=False) as archive:  # the format's reader reports damage
            found = {name: archive[name].item() for name in archive.files if CONVENTION_KEYS.search(name)}
    return {str(key): str(value) for key, value in found.items() if isinstance(value, str) or value is True}


def _convention_in(line: str) -> str:
    """Return the words in a table's header line for left-handed axes, such as "Unity"; else the pose direction, "c2w"
    or "w2c". Return "" if the line is unclear."""
    line = re.sub(r"\S*[/\\]\S*\.\w+", "", line)
    if left_handed := LEFT_HANDED.search(line):
        return left_handed[0]
    plain = re.sub(r"[^a-z0-9]", "", line.lower())
    found = [direction for direction, pattern in DIRECTIONS.items() if re.search(pattern, plain)]
    return found[0] if len(found) == 1 else ""


def stated_convention(texts: Mapping[str, str], default: str, where: str) -> str:
    """Return the name of a file's matrix convention, such as "opencv_c2w", or "" if it is unknown. Raise CameraError
    for unsupported axes or a contradiction.

    texts: the file's texts by key; some may state axes or a direction.
    default: the format's convention, used if `texts` do not state axes or direction; "" if the format has none.
    where: the prefix of error messages.
    """
    axes, direction = default.split("_") if default else ("", "")
    for key, text in texts.items():
        if not CONVENTION_KEYS.search(key):
            continue
        if OTHER_AXES.search(f"{text} {key}"):
            raise CameraError(
                f"{where}: {key} is {text!r:.40}: left-handed axes and robots' axes are not read; export it for "
                f"OpenCV or Blender, or name the axes that it has with `convention`, one of {', '.join(CONVENTIONS)}"
            )
        stated = f"{axes_of(text) or axes}_{direction_of(text) or direction}"
        if default and stated != default:
            raise CameraError(
                f"{where}: {key} is {text!r:.40}, and this format is read as {default}: name the right one with "
                f"`convention`, {stated} or {default}"
            )
        axes, direction = stated.split("_")
    found = f"{axes}_{direction}"
    return found if found in CONVENTIONS else default


def lens_fault(texts: Mapping[str, str], where: str) -> str:
    """Return an error message if a file specifies a lens other than a pinhole, else "".

    texts: the file's texts by key, from `stated_texts`.
    where: begins the message.
    """
    stated = [(key, text) for key, text in texts.items() if LENS_KEYS.search(key) and OTHER_LENS.search(text)]
    return f"{where}: {stated[0][0]} {stated[0][1]!r:.60} is no pinhole camera" if stated else ""
