"""What the readers share: a recording, its lens, frames that are missing, text and JSON files."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import CameraError
from ..pose_folder import check_file
from ..poses import LENS_HEIGHT, LENS_WIDTH, lens_change


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


def lens_rows(pixels: np.ndarray, width: float, height: float, name: str) -> np.ndarray:
    """fx, fy, cx, cy rows [n, 4] in pixels of a width x height image, at 832x480 (each axis stretched by its own)."""
    if not (width >= 1 and height >= 1):
        raise CameraError(f"{name}: image size {width}x{height}; give the size that the focal length refers to")
    across, down = LENS_WIDTH / width, LENS_HEIGHT / height
    return np.asarray(pixels, dtype=np.float64) * [across, down, across, down]


def lens_notes(rows: np.ndarray, width: float, height: float) -> tuple[str, ...]:
    """Notes on a lens that changes on the way, or an image of another shape than 832x480."""
    notes = lens_change(rows) if (rows[:, :2] > 0).all() else []
    if abs(width / height / (LENS_WIDTH / LENS_HEIGHT) - 1) > 0.05:
        notes.append(f"Recorded at {width:g}x{height:g}: the lens is stretched with the picture to the video's shape.")
    return tuple(notes)


def distortion_notes(terms: Sequence[float]) -> tuple[str, ...]:
    """A note when a lens has distortion terms, which the model does not know."""
    strongest = max((abs(term) for term in terms), default=0.0)
    note = f"Lens distortion (up to {strongest:.3g}) is ignored: the model has a pinhole camera."
    return (note,) if strongest else ()


def refuse_gaps(indices, name: str) -> None:
    """CameraError when frame numbers or times [n] do not rise in even steps: a frame is missing or out of order."""
    steps = np.diff(np.asarray(indices, dtype=np.float64))
    if not len(steps):
        return
    usual = np.median(steps)
    bad = np.flatnonzero((steps <= 0) | (steps > 1.5 * usual))
    if len(bad):
        at = bad[0]
        raise CameraError(f"{name}: frames are missing or out of order between {indices[at]:g} and {indices[at + 1]:g}")


def natural_order(name: str) -> list:
    """Sorting key under which frame10 comes after frame9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def refuse_name_gaps(names: Sequence[str], where: str) -> None:
    """As `refuse_gaps`, for the last number in each of sorted file names; names without numbers pass."""
    found = [re.findall(r"\d+", name) for name in names]
    if all(found):
        refuse_gaps([int(digits[-1]) for digits in found], where)


def read_text(path: Path) -> str:
    """A UTF-8 text file of at most 64 MiB."""
    check_file(path)
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CameraError(f"{path}: not a text file") from error


def read_json(path: Path):
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
