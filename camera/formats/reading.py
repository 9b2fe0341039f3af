"""The result of the readers of camera files, and functions that read text, tables and JSON."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CameraError
from ..pose_folder import check_file
from ..poses import LARGEST_FRACTION, LENS_HEIGHT, LENS_WIDTH, as_float64, check_intrinsics, lens_change

LARGE_SIDE = 100
"""Above this width and height in pixels, a lens of very small values is refused: they seem to be fractions of the image
size."""
CONVENTION_KEYS = re.compile(r"convention|coord(inate)?s?_?(system|frame)?$|^axes$|_type$|hand", re.IGNORECASE)
"""A pattern for the keys under which a file may state its matrix convention."""
Lens = tuple[np.ndarray, tuple[str, ...]]
"""The two results of a lens reader: an array [n, 4] and notes for the user. The array has fx, fy, cx, cy in pixels of
an 832x480 image, in one row per pose or one row for all."""


@dataclass(frozen=True)
class CameraFile:
    """The content of a camera file. Absent parts are None.

    c2w: [n, 4, 4], camera-to-world in OpenCV axes.
    intrinsics: [n, 4], fx, fy, cx, cy in pixels of an 832x480 image.
    actions: [n, 4], W, A, S, D flags.
    lens_fault: why the file's lens is unusable, else "".
    """

    c2w: np.ndarray
    intrinsics: np.ndarray | None = None
    fps: float | None = None
    notes: tuple[str, ...] = ()
    actions: np.ndarray | None = None
    lens_fault: str = ""

    def with_lens(self, read: Callable[[], Lens]) -> "CameraFile":
        """Return a copy with the lens from `read()`, and with the notes from `read()` appended to `notes`. If `read`
        raises CameraError, return a copy with the message as `lens_fault`."""
        try:
            lens, notes = read()
            return replace(self, intrinsics=check_intrinsics(lens), notes=self.notes + notes)
        except CameraError as error:
            return replace(self, lens_fault=str(error))


def lens_rows(pixels: np.ndarray | list[list[float]], width: float, height: float, name: str) -> np.ndarray:
    """Return `pixels`, rows of fx, fy, cx, cy, scaled from a `width` x `height` image to 832x480. Raise CameraError,
    with the prefix `name`, for a side below 1 or a lens in fractions of the image size."""
    if not (width >= 1 and height >= 1):
        raise CameraError(f"{name}: image size {width}x{height}; give the size that the focal length refers to")
    rows = np.asarray(pixels, dtype=np.float64)
    if min(width, height) > LARGE_SIDE and rows.max() <= LARGEST_FRACTION:
        raise CameraError(
            f"{name}: focal length {rows[0, 0]:g} and centre {rows[0, 2]:g} are fractions of a {width:g}x{height:g} "
            "image, it seems; expected pixels"
        )
    across, down = LENS_WIDTH / width, LENS_HEIGHT / height
    return rows * [across, down, across, down]


def lens_notes(rows: np.ndarray, width: float, height: float, distortion: Sequence[float] = ()) -> tuple[str, ...]:
    """Return notes for the user if the lens varies, if it has distortion, or if the image's aspect ratio is not
    832:480.

    rows: [n, 4], fx, fy, cx, cy of each frame.
    width, height: the size of the recorded image.
    distortion: the distortion coefficients.
    """
    notes, strongest = lens_change(rows), max(map(abs, distortion), default=0.0)
    if abs(width / height / (LENS_WIDTH / LENS_HEIGHT) - 1) > 0.05:
        notes.append(f"Recorded at {width:g}x{height:g}: the lens is stretched with the image to the video's shape.")
    if strongest:
        notes.append(f"Lens distortion (up to {strongest:.3g}) is ignored: the model has a pinhole camera.")
    return tuple(notes)


def read_text(path: Path) -> str:
    """Return a file's UTF-8 text. Raise CameraError for a file that is missing, empty, over 64 MiB or not UTF-8."""
    check_file(path)
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CameraError(f"{path}: not UTF-8 text; save it as UTF-8 (PowerShell 5 writes UTF-16)") from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raise CameraError for invalid JSON."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise CameraError(f"{path}: not JSON ({error})") from error


def read_table(path: Path, *columns: int, numeric: Sequence[int] = ()) -> np.ndarray:
    """Return a text file's numbers, float64 [n, k].

    columns: the accepted values of k, the number of columns.
    numeric: the indices of the columns to read, by default all; the others become 0.
    """
    split = ((at, split_columns(line.partition("#")[0])) for at, line in enumerate(read_text(path).splitlines(), 1))
    lines = [*dropwhile(lambda line: not is_number(line[1][0]), (line for line in split if line[1] != [""]))]
    if not lines:
        raise CameraError(f"{path}: no camera lines")
    expected = len(lines[0][1]) if len(lines[0][1]) in columns else columns[0]
    for number, fields in lines:
        if len(fields) != expected:
            raise CameraError(f"{path}: line {number} has {len(fields)} columns, expected {expected}")
    wanted = {*(numeric or range(expected))}
    rows = ((number, (value if at in wanted else "0" for at, value in enumerate(fields))) for number, fields in lines)
    return np.array([float_fields(fields, f"{path}: line {number}") for number, fields in rows])


def split_columns(line: str) -> list[str]:
    """Return the columns of a line, separated by spaces, semicolons or commas. In a line with semicolons a comma is a
    decimal point."""
    return line.replace(",", "." if ";" in line else " ").replace(";", " ").split() or [""]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def float_fields(fields: Iterable[str], where: str) -> list[float]:
    """Return `fields`, the columns of a line, as floats. Raise CameraError, with the prefix `where`, for a column that
    is not a number."""
    try:
        return [float(value) for value in fields]
    except ValueError as error:
        raise CameraError(f"{where}: {error}") from error


def read_object(path: Path) -> Mapping:
    """Return the object in a JSON file. Raise CameraError for other content."""
    data = read_json(path)
    if not isinstance(data, Mapping):
        raise CameraError(f"{path}: {type(data).__name__}, expected an object")
    return data


def entries_of(data: Mapping, key: str, path: Path) -> list[Mapping]:
    """Return the list of objects under `key`. Raise CameraError if the list is missing, empty or of another type."""
    entries = field_of(data, key, str(path))
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise CameraError(f"{path}: {key} is not a list of frames with something in it")
    return entries


def field_of(data: Mapping, key: str, where: str) -> Any:
    """Return the value of `key`. Raise CameraError, with a message that begins with `where`, for a missing key."""
    if key not in data:
        raise CameraError(f"{where}: no {key}; found {', '.join(map(str, list(data)[:8])) or 'nothing'}")
    return data[key]


def number_of(value: Any, where: str) -> float:
    """Return `value` as a float. Raise CameraError, with a message that begins with `where`, unless it is a finite
    number."""
    array = as_float64(value, where)
    if array.ndim or not np.isfinite(array):
        raise CameraError(f"{where}: {value!r:.60}, expected a finite number")
    return float(array)
