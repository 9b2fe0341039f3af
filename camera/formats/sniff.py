"""Whether a file looks like a camera path, from a glance at it: what lists offer. Readers still check every number."""

import re
from contextlib import suppress
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import numpy as np

HEAD = 64 * 2**10  # bytes that are looked at
KEYS = ("transform_matrix", "camera_path", "camera_to_world", "matrices")  # of JSON files that a reader takes
COLUMNS = 19  # of a RealEstate10K line


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
    looks = {".npy": looks_like_poses, ".npz": _is_vipe, ".json": _is_json, ".txt": _is_text}.get(path.suffix.lower())
    with suppress(OSError):
        return looks is not None and looks(path)
    return False


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


def _is_vipe(path: Path) -> bool:
    with suppress(Exception), ZipFile(path) as archive, archive.open("data.npy") as data:  # all that zipfile may raise
        return "inds.npy" in archive.namelist() and _header_shape(data)[1:] == (4, 4)
    return False


def _is_json(path: Path) -> bool:
    head = _head(path).lstrip()
    return bool(re.match(r"\[\s*[\[\d-]", head)) or any(f'"{key}"' in head for key in KEYS)


def _is_text(path: Path) -> bool:
    """COLMAP's images.txt, or RealEstate10K's lines of 19 numbers."""
    lines = (line.split() for line in _head(path).splitlines()[:3])
    return path.name == "images.txt" or any(len(fields) == COLUMNS and _are_numbers(fields) for fields in lines)


def _are_numbers(fields: list[str]) -> bool:
    try:
        return bool([float(field) for field in fields])
    except ValueError:
        return False


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(HEAD).decode("utf-8-sig", errors="replace")
