"""Detection of a camera file's format from its name and first bytes. The format's reader checks the content."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PureWindowsPath
from typing import IO
from zipfile import ZipFile

import numpy as np

from .colmap import COLMAP_FILES, model_folder
from .matrices import array_direction, direction_of
from .scans import PARTS, POSES, scan_folder
from .text_files import is_number, pose_files, split_columns
from .tum import tum_columns

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


def looks_like_poses(path: Path) -> bool:
    """Return whether a file is a readable .npy of matrices, [n, 4, 4] or [n, 3, 4]."""
    return _array_shape(path)[1:] in ((4, 4), (3, 4))


def looks_like_lens(path: Path) -> bool:
    """Return whether a file is a readable .npy with the shape of a lens, [n, 4] or [4]."""
    shape = _array_shape(path)
    return len(shape) in (1, 2) and shape[-1] == 4


def looks_like_camera(path: Path) -> bool:
    """Return whether a file or folder seems to have a camera format, judged by its name and first bytes. An .npy file
    must hold matrices."""
    return format_of(path) is not None and (path.suffix != ".npy" or looks_like_poses(path))


def format_of(path: Path) -> str | None:
    """Return the detected format of a file or folder, a name in FORMATS; None if unknown or unreadable."""
    with suppress(OSError):
        if path.is_dir():
            return _folder(path)
        if path.name in COLMAP_FILES:
            return "colmap"
        detect = _DETECTORS.get(path.suffix.lower())
        return None if detect is None else detect(path)
    return None


def _folder(path: Path) -> str:
    if (path / "poses.npy").is_file():
        return "lingbot"
    if format := next((format for name, format in FOLDERS.items() if (path / name).is_file()), None):
        return format
    if any((model_folder(path) / name).is_file() for name in COLMAP_FILES):
        return "colmap"
    if scan_folder(path) is not None:
        return "arkit"
    return "kitti" if len(pose_files(path)) > 1 else "lingbot"


def _array_shape(path: Path) -> tuple[int, ...]:
    try:
        with path.open("rb") as file:
            return array_header(file)[0]
    except OSError:
        return ()


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], str]:
    """Return the shape in an .npy header, and numpy's letter for the kind of its values; () and "" for an array of
    Python objects and for other files."""
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
    numbers = [len(columns) for columns in lines[:3] if all(map(is_number, columns))]
    if numbers and (named := tum_columns(every)) is not None and named.total in numbers:
        return "tum"
    return next((COLUMNS[count] for count in numbers if count in COLUMNS), None)


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
"""The functions that detect a file's format, by suffix. They return None for an unknown format."""
