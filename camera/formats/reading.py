"""What the readers share: a recording, its lens, frames that are missing, text and JSON files."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...errors import CameraError
from ..pose_folder import check_file
from ..poses import LENS_HEIGHT, LENS_WIDTH, lens_change

T = TypeVar("T")


@dataclass(frozen=True)
class Recording:
    """What a file holds: c2w [n, 4, 4] OpenCV, lens [n, 4] at 832x480, frames a second, notes, actions [n, 4].

    None stands for what it does not hold; `notes` say what of it the model cannot use.
    """

    c2w: np.ndarray
    intrinsics: np.ndarray | None = None
    fps: float | None = None
    notes: tuple[str, ...] = ()
    actions: np.ndarray | None = None


def lens_rows(pixels: np.ndarray | list[list[float]], width: float, height: float, name: str) -> np.ndarray:
    """fx, fy, cx, cy rows [n, 4] in pixels of a width x height image, at 832x480 (each axis stretched by its own)."""
    if not (width >= 1 and height >= 1):
        raise CameraError(f"{name}: image size {width}x{height}; give the size that the focal length refers to")
    across, down = LENS_WIDTH / width, LENS_HEIGHT / height
    return np.asarray(pixels, dtype=np.float64) * [across, down, across, down]


def lens_notes(rows: np.ndarray, width: float, height: float, distortion: Sequence[float] = ()) -> tuple[str, ...]:
    """Notes on a lens that changes on the way, on an image of another shape than 832x480, on distortion terms."""
    notes, strongest = lens_change(rows), max(map(abs, distortion), default=0.0)
    if abs(width / height / (LENS_WIDTH / LENS_HEIGHT) - 1) > 0.05:
        notes.append(f"Recorded at {width:g}x{height:g}: the lens is stretched with the picture to the video's shape.")
    if strongest:
        notes.append(f"Lens distortion (up to {strongest:.3g}) is ignored: the model has a pinhole camera.")
    return tuple(notes)


def refuse_gaps(indices: Sequence[float] | np.ndarray, name: str) -> None:
    """CameraError when frame numbers or times [n] do not rise in even steps: a frame is missing or out of order."""
    steps = np.diff(np.asarray(indices, dtype=np.float64))
    if not len(steps):
        return
    usual = np.median(steps)
    bad = np.flatnonzero((steps <= 0) | (steps > 1.5 * usual))
    if len(bad):
        at = bad[0]
        raise CameraError(f"{name}: frames are missing or out of order between {indices[at]:g} and {indices[at + 1]:g}")


def words_and_numbers(name: str) -> list[str | int]:
    """A name's parts, by which frame10 comes after frame9."""
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", name))]


def in_name_order(frames: Sequence[T], name: Callable[[T], str], where: str) -> list[T]:
    """Frames sorted by their files' names, frame10 after frame9.

    CameraError when the last numbers in the names leave gaps; names without numbers pass.
    """
    frames = sorted(frames, key=lambda frame: words_and_numbers(name(frame)))
    parts = [words_and_numbers(name(frame)) for frame in frames]
    if all(len(found) > 1 for found in parts):
        refuse_gaps([float(found[-2]) for found in parts], where)
    return frames


def read_text(path: Path) -> str:
    """A UTF-8 text file of at most 64 MiB."""
    check_file(path)
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CameraError(f"{path}: not a text file") from error


def read_json(path: Path) -> Any:
    """What a JSON file of at most 64 MiB holds."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise CameraError(f"{path}: not JSON ({error})") from error


def float_fields(fields: Sequence[str], where: str) -> list[float]:
    """Numbers out of the columns of one line."""
    try:
        return [float(value) for value in fields]
    except ValueError as error:
        raise CameraError(f"{where}: {error}") from error
