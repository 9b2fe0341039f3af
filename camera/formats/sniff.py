"""What camera path a file looks like, from a glance at it. Readers still check every number."""

import re
from contextlib import suppress
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import numpy as np

HEAD = 64 * 2**10  # bytes that are looked at
KEYS = {
    "transform_matrix": "transforms",
    "camera_to_world": "camera_path",
    "camera_path": "camera_path",
    "matrices": "matrices",
}
"""Of JSON files, and the formats that have them."""
COLUMNS = {19: "realestate10k", 12: "kitti"}
COLMAP = ("images.bin", "images.txt", "cameras.bin", "cameras.txt")


def looks_like_poses(path: Path) -> bool:
    """An .npy of matrices [n, 4, 4]."""
    shape = _array_shape(path)
    return len(shape) == 3 and shape[1:] == (4, 4)


def looks_like_lens(path: Path) -> bool:
    """An .npy of fx, fy, cx, cy: [n, 4] or [4]."""
    shape = _array_shape(path)
    return len(shape) in (1, 2) and shape[-1] == 4


def looks_like_camera(path: Path) -> bool:
    """A file that one of the formats reads, or a folder's poses.npy."""
    return format_of(path) is not None and (path.suffix != ".npy" or looks_like_poses(path))


def format_of(path: Path) -> str | None:
    """The format that a file or folder seems to be of; a file that is not there by its name."""
    with suppress(OSError):
        if path.is_dir():
            return "colmap" if any((path / name).is_file() for name in COLMAP) else "lingbot"
        if path.name in COLMAP:
            return "colmap"
        told = {".npy": lambda _: "lingbot", ".npz": _archive, ".json": _json, ".txt": _text}.get(path.suffix.lower())
        return told(path) if told is not None else None
    return None


def _array_shape(path: Path) -> tuple[int, ...]:
    try:
        with path.open("rb") as file:
            return _header_shape(file)
    except OSError:
        return ()


def _header_shape(file: IO[bytes]) -> tuple[int, ...]:
    """The shape in an .npy header; () for objects and for what is no .npy."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    except Exception:  # numpy reads the header as Python: any error of its tokenizer and parser can come out
        return ()
    return () if kind.hasobject else shape


def _archive(path: Path) -> str | None:
    with suppress(Exception), ZipFile(path) as archive, archive.open("data.npy") as data:  # all that zipfile may raise
        return "vipe" if "inds.npy" in archive.namelist() and _header_shape(data)[1:] == (4, 4) else None
    return None


def _json(path: Path) -> str | None:
    head = _head(path).lstrip()
    if re.match(r"\[\s*[\[\d-]", head):
        return "matrices"
    return next((format for key, format in KEYS.items() if f'"{key}"' in head), None)


def _text(path: Path) -> str | None:
    """By the columns of its first lines of numbers."""
    for line in _head(path).splitlines()[:3]:
        with suppress(ValueError):  # words are no numbers
            columns = len([float(field) for field in line.split()])
            if columns in COLUMNS:
                return COLUMNS[columns]
    return None


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(HEAD).decode("utf-8-sig", errors="replace")
