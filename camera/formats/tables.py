"""Readers of camera paths in tables of numbers: RealEstate10K, CameraCtrl, KITTI and TUM."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import CameraError
from ...fields import Field, Reported, notes_on_unknown
from ..conventions import Convention, to_opencv
from ..path import MOST_FRAMES
from ..poses import LENS_HEIGHT, LENS_WIDTH, lens_change
from ..rotation import from_quaternions, interpolate, rigid
from .frame_names import refuse_gaps, sort_by_name
from .lens import pixel_lens
from .reading import CameraFile, Lens, is_number, lens_notes, read_table, read_text, split_columns
from .scans import check_quaternions

RE10K_FIELDS = (
    Field(("first column",), "applied", "The time: gaps are refused. One number in all lines is no time."),
    Field(("columns 2 to 5",), "applied", "fx, fy, cx, cy as fractions of width and height; pixels are refused."),
    Field(("columns 6 and 7",), "reported", "Distortion, if they are not 0."),
    Field(("columns 8 to 19",), "applied", "World to camera, 3x4 by row; the digits decide what is a rounding error."),
    Field(("first line",), "ignored", "The video's address."),
)
SCANNET_LENS = "intrinsic/intrinsic_color.txt"
NUMBERED = r"((frame|pose)[-_]?|\d+_)?\d+(\.pose)?\.txt"
"""A pattern for the names of a frame's pose file, such as 12.txt or frame-000012.pose.txt."""
KITTI_FIELDS = (
    Field(("12 or 16 columns",), "applied", "Camera to world, 3x4 or 4x4 by row, as KITTI's odometry and Replica."),
    Field(("4 columns",), "applied", "Blocks of 4 lines, and folders with a file for each frame (ScanNet, 7-Scenes)."),
    Field(
        ("13 or 17 columns",),
        "applied",
        "The same after a frame's number, as KITTI-360's cam0_to_world.txt has: gaps are refused.",
    ),
    Field((SCANNET_LENS,), "applied", "ScanNet's lens, in the folder or next to it; its image is twice cx, cy."),
    Field(("calib.txt",), "ignored", "No lens in the file: `--fov_deg`, or 79 degrees, which is reported."),
)
LENS = ("fx", "fy", "cx", "cy")
EUROC = tuple(f"{name}_{axis}" for name in ("v_rs_r", "b_w_rs_s", "b_a_rs_s") for axis in "xyz")
TUM_FIELDS = (
    Field(("timestamp",), "applied", "Of poses at uneven times, such as keyframes, even ones are made; reported."),
    Field(("tx ty tz qx qy qz qw",), "applied", "Camera to world; quaternions that are not of length 1 are refused."),
    Field(("header",), "applied", "Names of columns, in a comment too: their order, such as w before x in EuRoC's."),
    Field(
        (";",),
        "applied",
        "Separates columns, as space, tab and comma do. In a line with semicolons a comma is a decimal point.",
    ),
    Field(LENS, "applied", "A lens in pixels, if the header names it. Its image is twice cx, cy; reported."),
    Field(("pred_intrinsics.txt",), "applied", "MonST3R's lens. Then quaternions of pred_traj.txt begin with w."),
    Field(("qx",), "refused", "Without a header, if only w first leads where the camera looks. Doubts are reported."),
    Field(("p_RS_R",), "reported", "EuRoC's poses are those of the IMU."),
    Field(EUROC, "ignored", "EuRoC's velocities and biases."),
    Field(("", "frame", "frame_id", "child_frame_id", "id", "index", "seq"), "ignored", "Numbers next to a time."),
)
WANTED = ("time", "x", "y", "z", "qx", "qy", "qz", "qw")
W_FIRST = re.compile(r"(?<![a-z])w[\s,]+x[\s,]+y[\s,]+z(?![a-z])")
W_FIRST_COLUMNS = [0, 1, 2, 3, 5, 6, 7, 4]
FRAME = re.compile(r"^sec|^frame|^(id|idx|index)$")
"""A pattern for the names of table columns that replace a missing time column: seconds, frame numbers and indices."""
TURN_COLUMN = re.compile(r"(?:^r(?=_?.$)|^q|_q(?=_?.$|_rs_)|quat|rot|orientation).*?([wxyzijk])$")
"""A pattern for the names of table columns that hold a quaternion's component. Group 1 is w, x, y or z, or i, j, k for
x, y, z."""
PLACE_COLUMN = re.compile(
    r"^(?:cam(?:era)?_)?(?:t|p|(?:.*_)?pos(?:ition)?|trans(?:lation)?|loc(?:ation)?)?(?:_\w+?)?_?([xyz])$"
)
"""A pattern for the names of table columns that hold a position's coordinates. Group 1 is x, y or z."""
UNEVEN_STEPS = 1.5
"""If a time step is longer or shorter than the median step by more than this factor, the poses are resampled."""
MIN_FORWARD, MIN_GAIN, MIN_UPRIGHT = 0.7, 0.1, 0.7
"""Quaternions seem to begin with w if that reading's fraction of forward motion exceeds MIN_FORWARD, and exceeds the
w-last reading's by MIN_GAIN. This is certain if the w-last reading's mean c2w[1, 1] is below MIN_UPRIGHT."""
W_LIKE = 0.999
"""If the first quaternion's first component has at least this absolute value, it is probably w."""
W_FIRST_NOTE = Reported(
    "The first number of the quaternions seems to be w: read as x, y, z, w the camera is upside down or does not go "
    "where it looks. Begin the file with the line `# timestamp tx ty tz qw qx qy qz`, or, if w is last, with "
    "`# timestamp tx ty tz qx qy qz qw`"
)
MONST3R = "pred_traj.txt", "pred_intrinsics.txt"
"""The names of MonST3R's files: the trajectory (quaternions with w first), and a 3x3 intrinsic matrix per line."""
IMU_NOTE = Reported(
    "The poses are those of EuRoC's IMU, not of a camera, which is mounted at an angle: multiply each by T_BS of the "
    "camera's sensor.yaml."
)


def read_realestate10k(path: Path, convention: Convention) -> CameraFile:
    """Read a text file of RealEstate10K or CameraCtrl. A line holds a frame's time, lens and 3x4 matrix."""
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
    """Read 3x4 or 4x4 matrices from a text file (KITTI), or from a folder with a file per frame (ScanNet). For a
    folder, also read the lens file SCANNET_LENS, if the folder or its parent has it. `convention`: the matrices' axes
    and direction."""
    files = sort_by_name(pose_files(path), lambda file: file.stem, str(path)) if path.is_dir() else [path]
    read = [read_table(file, 12, 16, 13, 17, 4) for file in files]
    if several := next(
        (file for file, each in zip(files, read, strict=True) if path.is_dir() and each.size > 17), None
    ):
        raise CameraError(f"{several}: more than one pose in a file of a folder, expected one; name a file")
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
    """Return the pose files, one per frame, in `folder` or in its subfolder "pose" or "poses". The list may be
    empty."""
    found = ([*place.glob("*.txt")] for place in (folder, folder / "pose", folder / "poses"))
    return [file for file in next(filter(None, found), []) if re.fullmatch(NUMBERED, file.name)]


def read_tum(path: Path, convention: Convention) -> CameraFile:
    """Read a TUM trajectory: time, position and quaternion (x, y, z, w) per line. A header may specify another order of
    columns. Poses at uneven times are resampled. Raise CameraError if a file without a header clearly has w first."""
    lines, lens_file = read_text(path).splitlines(), path.with_name(MONST3R[1])
    stated = tum_columns(lines)
    if stated is None:
        _refuse_strange_header(path, lines)
    of_monst3r = stated is None and path.name == MONST3R[0] and lens_file.is_file()
    columns = stated or Columns(8, W_FIRST_COLUMNS if of_monst3r else [*range(8)])
    numbers = read_table(path, columns.total, numeric=(*columns.columns, *columns.lens))
    rows = numbers[:, columns.columns]
    check_quaternions(rows[:, 4:], str(path))
    c2w = to_opencv(rigid(from_quaternions(rows[:, 4:]), rows[:, 1:4]), convention, str(path), rows[:, 1:])
    doubts = _check_quaternion_order(path, c2w, rows, convention) if stated is None and not of_monst3r else []
    c2w, notes = _at_even_times(c2w, rows[:, 0], path)
    recording = CameraFile(c2w, notes=(*doubts, *notes, *_header_notes(lines, columns)))
    if of_monst3r:
        return recording.with_lens(lambda: _first_lens([{"K": row} for row in read_table(lens_file, 9).tolist()], path))
    lenses = [dict(zip(LENS, row, strict=True)) for row in numbers[:, columns.lens] if columns.lens]
    return recording.with_lens(lambda: _first_lens(lenses, path)) if lenses else recording


def _header_notes(lines: Sequence[str], columns: "Columns") -> list[str]:
    header = _header(lines)
    names, used = _names(header), {*columns.columns, *columns.lens}
    others = [name for at, name in enumerate(names) if at not in used and len(names) == columns.total]
    return [*notes_on_unknown(others, TUM_FIELDS), *([IMU_NOTE] if "_RS_R_" in header else [])]


def _first_lens(frames: Sequence[Mapping], path: Path) -> Lens:
    lens, notes = pixel_lens(frames, str(path))
    return lens[:1], (*notes, *lens_change(lens))  # resampled poses no longer match the frames' lenses


def _check_quaternion_order(path: Path, c2w: np.ndarray, rows: np.ndarray, convention: Convention) -> list[str]:
    """Raise CameraError if the quaternions in `rows` clearly begin with w. Return a list with one warning if they
    possibly do, else an empty list."""
    other = to_opencv(rigid(from_quaternions(rows[:, [5, 6, 7, 4]]), rows[:, 1:4]), convention, str(path))
    ahead, other_ahead = _forward(c2w), _forward(other)
    # absolute: a straight path with the camera rotated by 180 degrees about x is valid in both readings
    clearer = other_ahead > max(MIN_FORWARD, abs(ahead) + MIN_GAIN)
    if clearer and c2w[:, 1, 1].mean() < MIN_UPRIGHT:
        raise CameraError(f"{path}: {W_FIRST_NOTE}")
    seems_first = other_ahead > MIN_FORWARD or abs(rows[0, 4]) >= W_LIKE
    return [W_FIRST_NOTE] if clearer or (seems_first and ahead <= MIN_FORWARD) else []


def _forward(c2w: np.ndarray) -> float:
    """Return the camera's forward motion as a fraction of the path's length, from -1 (only backwards) to 1."""
    steps = np.diff(c2w[:, :3, 3], axis=0)
    length = np.linalg.norm(steps, axis=1).sum()
    return float((steps * c2w[:-1, :3, 2]).sum() / length) if length else 0.0


def _at_even_times(c2w: np.ndarray, times: np.ndarray, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    steps = np.diff(times)
    if not np.isfinite(times).all() or (steps <= 0).any():
        refuse_gaps(times, f"{path} (time stamps)")
        raise CameraError(f"{path}: time stamps are out of order, or no numbers")
    usual = float(np.median(steps)) if len(steps) else 1.0
    if not len(steps) or (steps.max() <= UNEVEN_STEPS * usual and steps.min() * UNEVEN_STEPS >= usual):
        return c2w, ()
    count = round((times[-1] - times[0]) / usual) + 1
    if count > MOST_FRAMES:
        raise CameraError(f"{path}: {count} steps of {usual:g} between its time stamps, expected at most {MOST_FRAMES}")
    at = np.interp(np.linspace(times[0], times[-1], count), times, np.arange(len(times)))
    note = (
        f"Time stamps are {steps.min():.3g} to {steps.max():.3g} apart: {len(times)} poses were interpolated at "
        f"{count} even times."
    )
    return interpolate(c2w, at), (note,)


class Columns(NamedTuple):
    """The columns of a trajectory file.

    total: the number of columns.
    columns: the indices of time, position xyz and quaternion xyzw.
    lens: the indices of fx, fy, cx, cy; may be empty.
    """

    total: int
    columns: list[int]
    lens: Sequence[int] = ()


def tum_columns(lines: Sequence[str]) -> Columns | None:
    """Return the columns that a trajectory's header states, or None if the header states no complete order."""
    header = _header(lines)
    names = _names(header)
    found = [_column_of(name) for name in names]
    if "time" not in found:
        found = ["time" if FRAME.search(name) else column for name, column in zip(names, found, strict=True)]
    if "time" not in found or any(found.count(name) != 1 for name in WANTED[1:]):
        return Columns(8, W_FIRST_COLUMNS) if W_FIRST.search(header.lower()) else None
    lens = [names.index(name) for name in LENS] if {*LENS} <= {*names} else ()
    return Columns(len(found), [found.index(name) for name in WANTED], lens)


def _header(lines: Sequence[str]) -> str:
    """Return the last line of text before the numbers, without its comment sign."""
    header = ""
    for line in lines:
        text = line.strip().lstrip("#%/").strip()
        if text == line.strip() and is_number(split_columns(text)[0]):
            break
        header = text or header
    return header


def _names(header: str) -> list[str]:
    names = header.replace(";", ",").split(",") if {",", ";"} & {*header} else header.split()
    return [re.sub(r"[\[(].*", "", name).strip(" \t\"'").lower() for name in names]


def _refuse_strange_header(path: Path, lines: Sequence[str]) -> None:
    header = _header(lines)
    names = _names(header)
    if len(names) == 8 and (header in map(str.strip, lines) or sum(map(bool, map(_column_of, names))) > 2):
        raise CameraError(
            f"{path}: the columns {header!r:.80} are not understood; name them timestamp tx ty tz qx qy qz qw, in "
            "the order of the numbers"
        )


def _column_of(name: str) -> str:
    """Return what a table column with this name holds: an item of WANTED, such as "time", "x" or "qw". Return "" for
    other columns."""
    name = re.sub("[ .]+", "_", name)
    if re.search(r"time|stamp|^t$", name):
        return "time"
    if match := TURN_COLUMN.search(name):
        return f"q{match[1]}".translate({ord("i"): "x", ord("j"): "y", ord("k"): "z"})
    match = PLACE_COLUMN.search(name)
    return match[1] if match else ""
