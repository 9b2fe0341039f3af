"""Camera paths in text files: RealEstate10K / CameraCtrl, and KITTI's rows."""

from pathlib import Path

import numpy as np

from ...errors import CameraError
from ..conventions import CONVENTIONS, to_opencv
from ..poses import LENS_HEIGHT, LENS_WIDTH
from .reading import Recording, float_fields, lens_notes, read_text, refuse_gaps


def read_realestate10k(path: Path) -> Recording:
    """A line a frame: time, fx, fy, cx, cy as shares of the image, two zeros, world-to-camera 3x4 by row; OpenCV axes.

    The first line may hold the video's address.
    """
    rows = _rows(path, 19)
    if (rows[:, 1:5] > 10).any():
        raise CameraError(f"{path}: focal length {rows[0, 1]:g} is in pixels, expected a share of the image's width")
    refuse_gaps(rows[:, 0], f"{path} (time stamps)")
    lens = rows[:, 1:5] * [LENS_WIDTH, LENS_HEIGHT, LENS_WIDTH, LENS_HEIGHT]
    c2w = to_opencv(rows[:, 7:].reshape(-1, 3, 4), CONVENTIONS["opencv_w2c"], str(path))
    return Recording(c2w, lens, None, lens_notes(lens, LENS_WIDTH, LENS_HEIGHT))


def read_kitti(path: Path) -> Recording:
    """A line a frame: camera-to-world 3x4 by row, OpenCV axes, as KITTI odometry's poses/00.txt; no lens inside."""
    rows = _rows(path, 12)
    return Recording(to_opencv(rows.reshape(-1, 3, 4), CONVENTIONS["opencv_c2w"], str(path)))


def _rows(path: Path, columns: int) -> np.ndarray:
    """The numbers of every line that is not empty; the first one may be an address."""
    lines = [(n, line.split()) for n, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    if lines and len(lines[0][1]) == 1:
        lines = lines[1:]
    if not lines:
        raise CameraError(f"{path}: no camera lines")
    for number, fields in lines:
        if len(fields) != columns:
            raise CameraError(f"{path}: line {number} has {len(fields)} columns, expected {columns}")
    return np.array([float_fields(fields, f"{path}: line {number}") for number, fields in lines])
