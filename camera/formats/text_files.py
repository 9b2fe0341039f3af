"""Readers of camera paths in text files: RealEstate10K / CameraCtrl, and KITTI."""

import re
from pathlib import Path

import numpy as np

from ...errors import CameraError
from ...fields import Field
from ..conventions import Convention, to_opencv
from ..poses import LENS_HEIGHT, LENS_WIDTH
from .frame_names import refuse_gaps, sort_by_name
from .lens import pixel_lens
from .reading import CameraFile, Lens, float_fields, lens_notes, read_text

RE10K_FIELDS = (
    Field(("first column",), "applied", "The time: gaps are refused. One number in all lines is no time."),
    Field(("columns 2 to 5",), "applied", "fx, fy, cx, cy as fractions of width and height; pixels are refused."),
    Field(("columns 6 and 7",), "reported", "Distortion, if they are not 0."),
    Field(("columns 8 to 19",), "applied", "World to camera, 3x4 by row; the digits decide what is a rounding error."),
    Field(("first line",), "ignored", "The video's address."),
)
SCANNET_LENS = "intrinsic/intrinsic_color.txt"
KITTI_FIELDS = (
    Field(("12 or 16 columns",), "applied", "Camera to world, 3x4 or 4x4 by row, as KITTI's odometry and Replica."),
    Field(("4 columns",), "applied", "Blocks of 4 lines, and folders with a file for each frame (ScanNet, 7-Scenes)."),
    Field(
        ("13 or 17 columns",),
        "applied",
        "The same after a frame's number, as KITTI-360's cam0_to_world.txt has: gaps are refused.",
    ),
    Field(
        (SCANNET_LENS,), "applied", "ScanNet's lens, in a folder or next to it; its image is twice cx, cy; reported."
    ),
    Field(("calib.txt",), "ignored", "No lens in the file: `--fov_deg`, or 79 degrees, which is reported."),
)


def read_realestate10k(path: Path, convention: Convention) -> CameraFile:
    """Read a text file of RealEstate10K or CameraCtrl, one line per frame. The first line may be the video's address.

    A line holds the time; fx, fy, cx, cy as fractions of the image size; two distortion terms; and a matrix 3x4 by row.
    `convention`: the convention of the matrices; the format's own is world-to-camera in OpenCV axes. Raises CameraError
    for a missing or invalid file.
    """
    rows = read_table(path, 19)
    if np.ptp(rows[:, 0]):  # programs that know no times write the same number in every line
        refuse_gaps(rows[:, 0], f"{path} (time stamps)")
    c2w = to_opencv(rows[:, 7:].reshape(-1, 3, 4), convention, str(path))
    return CameraFile(c2w).with_lens(lambda: _lens_from_fractions(rows[:, 1:7], path))


def _lens_from_fractions(columns: np.ndarray, path: Path) -> Lens:
    if not (columns[:, :4] <= 10).all():
        raise CameraError(f"{path}: focal length {columns[0, 0]:g} is in pixels, expected a share of the image's width")
    lens = columns[:, :4] * [LENS_WIDTH, LENS_HEIGHT, LENS_WIDTH, LENS_HEIGHT]
    return lens, lens_notes(lens, LENS_WIDTH, LENS_HEIGHT, columns[:, 4:].ravel().tolist())


def read_kitti(path: Path, convention: Convention) -> CameraFile:
    """Read a text file of matrices, 3x4 or 4x4 by row, one line per frame, without a lens. Examples are KITTI
    odometry's poses/00.txt and Replica's traj.txt. A line may begin with a frame number, and a 4x4 matrix may take four
    lines.

    path: the file, or a folder with a file for each frame, as in ScanNet.
    convention: the convention of the matrices; the format's own is camera-to-world in OpenCV axes.

    Raises CameraError for a missing or invalid file.
    """
    files = sort_by_name(pose_files(path), lambda file: file.stem, str(path)) if path.is_dir() else [path]
    read = [read_table(file, 12, 16, 13, 17, 4) for file in files]
    rows = np.concatenate(read) if len({each.shape[1:] for each in read}) == 1 else np.zeros((0, 4))
    if rows.shape[1] == 4:
        if len(rows) % 4 or not len(rows):
            raise CameraError(f"{path}: {len(rows)} lines of 4 numbers, expected 4 for each frame")
        rows = rows.reshape(-1, 16)
    if rows.shape[1] % 4:
        refuse_gaps(rows[:, 0], f"{path} (frame numbers)")
        rows = rows[:, 1:]
    recording = CameraFile(to_opencv(rows.reshape(len(rows), -1, 4), convention, str(path)))
    lens = next((place / SCANNET_LENS for place in (path, path.parent) if (place / SCANNET_LENS).is_file()), None)
    if lens is None or not path.is_dir():
        return recording
    return recording.with_lens(lambda: pixel_lens([{"K": read_table(lens, 4)[:3, :3].tolist()}], str(lens)))


def pose_files(folder: Path) -> list[Path]:
    """Return the text files in `folder`, or in its folder `pose`, with a frame's number as name, such as 12.txt or
    frame-000012.pose.txt."""
    files = [*folder.glob("*.txt")] or [*folder.glob("pose/*.txt")]
    return [file for file in files if re.fullmatch(r"(frame[-_]?)?\d+(\.pose)?\.txt", file.name)]


def read_table(path: Path, *columns: int) -> np.ndarray:
    """Return the numbers [n, k] in a text file; `columns` are the accepted k. Empty lines, comments and a first line of
    text are skipped."""
    lines = [(number, split_columns(line)) for number, line in _lines(path)]
    if lines and not is_number(lines[0][1][0]):
        lines = lines[1:]
    if not lines:
        raise CameraError(f"{path}: no camera lines")
    expected = len(lines[0][1]) if len(lines[0][1]) in columns else columns[0]
    for number, fields in lines:
        if len(fields) != expected:
            raise CameraError(f"{path}: line {number} has {len(fields)} columns, expected {expected}")
    return np.array([float_fields(fields, f"{path}: line {number}") for number, fields in lines])


def split_columns(line: str) -> list[str]:
    """Return the columns of a line, separated by spaces, semicolons or commas; an empty line gives [""]. In a line with
    semicolons a comma is a decimal point."""
    return line.replace(",", "." if ";" in line else " ").replace(";", " ").split() or [""]


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines(path: Path) -> list[tuple[int, str]]:
    lines = ((number, line.partition("#")[0]) for number, line in enumerate(read_text(path).splitlines(), 1))
    return [(number, line) for number, line in lines if line.strip()]
