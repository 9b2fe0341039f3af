"""How other programs write a camera down, turned into camera-to-world matrices in OpenCV axes and a lens at 832x480."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...errors import CameraError
from ..path import inverse
from ..poses import LENS_HEIGHT, LENS_WIDTH, check_file, check_poses, numbers

OPENGL_TO_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])  # camera axes: y and z turned round


@dataclass(frozen=True)
class Convention:
    """What a matrix means: which way it maps, the camera's axes, and how 16 numbers in a row are laid out."""

    about: str
    camera_to_world: bool = True
    opengl_axes: bool = False
    by_column: bool = False


CONVENTIONS: dict[str, Convention] = {
    "opencv_c2w": Convention("camera-to-world, x right, y down, z forward"),
    "opencv_w2c": Convention("world-to-camera (extrinsics), x right, y down, z forward", camera_to_world=False),
    "opengl_c2w": Convention("camera-to-world, x right, y up, z back: Blender's matrix_world", opengl_axes=True),
    "opengl_w2c": Convention("world-to-camera (view matrix), x right, y up, z back", False, opengl_axes=True),
    "threejs": Convention("three.js matrixWorld.elements: as opengl_c2w, 16 numbers by column", True, True, True),
}


@dataclass(frozen=True)
class Recording:
    """What a file holds: c2w [n, 4, 4] OpenCV, lens [n, 4] at 832x480, rate and actions if it has them, remarks."""

    c2w: np.ndarray
    intrinsics: np.ndarray | None = None
    fps: float | None = None
    notes: list[str] = field(default_factory=list)
    actions: np.ndarray | None = None


def to_opencv(matrices, convention: Convention, name: str) -> np.ndarray:
    """Matrices [n, 4, 4], [n, 3, 4] or [n, 16] under a convention, as checked c2w float64 [n, 4, 4] in OpenCV axes."""
    matrices = numbers(matrices, name)
    if matrices.ndim == 2 and matrices.shape[1] == 16:
        matrices = matrices.reshape(-1, 4, 4)
    elif convention.by_column:
        raise CameraError(f"{name}: shape {list(matrices.shape)}, expected 16 numbers by column for each frame")
    if convention.by_column:
        matrices = matrices.swapaxes(1, 2)
    if matrices.ndim == 3 and matrices.shape[1:] == (3, 4):
        bottom = np.broadcast_to([[[0.0, 0.0, 0.0, 1.0]]], (len(matrices), 1, 4))
        matrices = np.concatenate([matrices, bottom], axis=1)
    poses = check_poses(matrices, name)
    if not convention.camera_to_world:
        poses = inverse(poses)
    return poses @ OPENGL_TO_OPENCV if convention.opengl_axes else poses


def lens_rows(pixels: np.ndarray, width: float, height: float, name: str) -> np.ndarray:
    """fx, fy, cx, cy rows [n, 4] in pixels of a width x height image, at 832x480 (each axis stretched by its own)."""
    if not (width >= 1 and height >= 1):
        raise CameraError(f"{name}: image size {width}x{height}; give the size that the focal length refers to")
    across, down = LENS_WIDTH / width, LENS_HEIGHT / height
    return np.asarray(pixels, dtype=np.float64) * [across, down, across, down]


def lens_notes(rows: np.ndarray, width: float, height: float) -> list[str]:
    """Remarks on a lens that changes on the way, or an image of another shape than 832x480."""
    notes = []
    change = np.abs(rows[:, :2] / rows[0, :2] - 1).max() if (rows[:, :2] > 0).all() else 0
    if change > 0.001:
        notes.append(f"The lens varies by {change:.1%}; the model uses the first frame's only.")
    if abs(width / height / (LENS_WIDTH / LENS_HEIGHT) - 1) > 0.05:
        notes.append(f"Recorded at {width:g}x{height:g}: the lens is stretched with the picture to the video's shape.")
    return notes


def distortion_note(terms: Sequence[float]) -> list[str]:
    """A remark when a lens has distortion terms, which the model knows nothing of."""
    strongest = max((abs(term) for term in terms), default=0.0)
    return [f"Lens distortion (up to {strongest:.3g}) is ignored: the model has a pinhole camera."] if strongest else []


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


def natural(name: str) -> list:
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
