"""Reader of camera paths in TUM's trajectory files, with the columns of any header."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import CameraError
from ...fields import Field, Reported, unread
from ..conventions import Convention, to_opencv
from ..path import MOST_FRAMES
from ..poses import lens_change
from ..rotation import from_quaternions, interpolate, rigid
from .frame_names import refuse_gaps
from .lens import pixel_lens
from .reading import CameraFile, Lens, read_text
from .scans import check_quaternions
from .text_files import is_number, read_table, split_columns

LENS = ("fx", "fy", "cx", "cy")
EUROC = tuple(f"{name}_{axis}" for name in ("v_rs_r", "b_w_rs_s", "b_a_rs_s") for axis in "xyz")
TUM_FIELDS = (
    Field(
        ("timestamp",),
        "applied",
        "Uneven times, such as those of keyframes: poses are interpolated at even times; reported.",
    ),
    Field(("tx ty tz qx qy qz qw",), "applied", "Camera to world; quaternions that are not of length 1 are refused."),
    Field(("header",), "applied", "Names of columns, in a comment too: their order, such as w before x in EuRoC's."),
    Field(
        (";",),
        "applied",
        "Separates columns, as space, tab and comma do. In a line with semicolons a comma is a decimal point.",
    ),
    Field(
        LENS, "applied", "Columns of a lens in pixels, if the header names them. Its image is twice cx, cy; reported."
    ),
    Field(
        ("pred_intrinsics.txt",), "applied", "MonST3R's lens. Next to it the quaternions of pred_traj.txt begin with w."
    ),
    Field(("qx",), "refused", "Without a header, if only w first leads where the camera looks. A first 1 is reported."),
    Field(("p_RS_R",), "reported", "EuRoC's poses are those of the IMU."),
    Field(EUROC, "ignored", "EuRoC's velocities and biases."),
    Field(("", "frame", "frame_id", "child_frame_id", "id", "index", "seq"), "ignored", "Numbers next to a time."),
)
W_FIRST = re.compile(r"(?<![a-z])w[\s,]+x[\s,]+y[\s,]+z(?![a-z])")
FRAME = re.compile(r"^sec|^frame|^(id|idx|index)$")
"""A pattern for column names that replace a missing time column: seconds, frame number or index."""
UNEVEN_STEPS = 1.5
"""The limit for the ratio of a time step to the median step, and for its inverse. Beyond it, poses are resampled at
even times."""


def read_tum(path: Path, convention: Convention) -> CameraFile:
    """Read a TUM trajectory, one line per frame: time, position, and quaternion x, y, z, w. A header may state another
    order of columns, and a lens. `convention`: the convention of the poses (the format's own is camera-to-world in
    OpenCV axes). A path with irregular time steps, such as a SLAM system's keyframes, is resampled at constant steps.
    Raises CameraError for a missing or invalid file, and without a header also if the camera goes where it looks only
    with w first."""
    lines, lens_file = read_text(path).splitlines(), path.with_name(MONST3R[1])
    stated = tum_columns(lines)
    if stated is None:
        _refuse_strange_header(path, lines)
    of_monst3r = stated is None and path.name == MONST3R[0] and lens_file.is_file()
    columns = stated or Columns(8, _W_FIRST if of_monst3r else [*range(8)])
    numbers = read_table(path, columns.total)
    rows = numbers[:, columns.columns]
    check_quaternions(rows[:, 4:], str(path))
    c2w = to_opencv(rigid(from_quaternions(rows[:, 4:]), rows[:, 1:4]), convention, str(path), rows[:, 1:])
    doubts = _refuse_w_first(path, c2w, rows, convention) if stated is None and not of_monst3r else []
    c2w, notes = _at_even_times(c2w, rows[:, 0], path)
    recording = CameraFile(c2w, notes=(*doubts, *notes, *_header_notes(lines, columns)))
    if of_monst3r:
        return recording.with_lens(lambda: _first_lens([{"K": row} for row in read_table(lens_file, 9).tolist()], path))
    lenses = [dict(zip(LENS, row, strict=True)) for row in numbers[:, columns.lens] if columns.lens]
    return recording.with_lens(lambda: _first_lens(lenses, path)) if lenses else recording


def _refuse_strange_header(path: Path, lines: Sequence[str]) -> None:
    if strange := _strange_header(lines):
        raise CameraError(
            f"{path}: the columns {strange!r:.80} are not understood; name them timestamp tx ty tz qx qy qz qw, in "
            "the order of the numbers"
        )


def _header_notes(lines: Sequence[str], columns: "Columns") -> list[str]:
    """Return notes for the user on columns that are not read, and on the poses of an IMU."""
    header = _header(lines)
    names, used = _names(header), {*columns.columns, *columns.lens}
    others = [name for at, name in enumerate(names) if at not in used and len(names) == columns.total]
    return [*unread(others, TUM_FIELDS), *([IMU_NOTE] if IMU.search(header) else [])]


def _first_lens(frames: Sequence[Mapping], path: Path) -> Lens:
    """Return the lens [1, 4] of the first frame, and notes on the lenses of all `frames`. Resampled poses do not
    correspond to frames, so they share this lens."""
    lens, notes = pixel_lens(frames, str(path))
    return lens[:1], (*notes, *lens_change(lens))


def _refuse_w_first(path: Path, c2w: np.ndarray, rows: np.ndarray, convention: Convention) -> list[str]:
    """Raise CameraError if the camera moves forward much more with w first in the quaternions of `rows` than with w
    last, as in `c2w`.

    A first quaternion whose first number is close to 1 or -1 is a weaker sign of w first, which a camera upside down
    also has. The result is a note on this sign, unless the camera moves forward with w last, else empty.
    """
    other = to_opencv(rigid(from_quaternions(rows[:, [5, 6, 7, 4]]), rows[:, 1:4]), convention, str(path))
    ahead, other_ahead = _forward_fraction(c2w), _forward_fraction(other)
    if other_ahead > max(W_FORWARD, ahead + W_FORWARD / 2):
        raise CameraError(f"{path}: {W_FIRST_NOTE}")
    return [W_FIRST_NOTE] if abs(rows[0, 4]) >= W_LIKE and ahead <= W_FORWARD else []


def _forward_fraction(c2w: np.ndarray) -> float:
    """Return how far the camera moves in its viewing direction, as a fraction of the path's length: 1 only forward, -1
    only backwards."""
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


W_LIKE, W_FORWARD = 0.999, 0.7
W_FIRST_NOTE = Reported(
    "The first number of the quaternions seems to be w: read as x, y, z, w the camera is upside down or does not go "
    "where it looks. Begin the file with the line `# timestamp tx ty tz qw qx qy qz`, or, if w is last, with "
    "`# timestamp tx ty tz qx qy qz qw`"
)
_W_FIRST = [0, 1, 2, 3, 5, 6, 7, 4]
MONST3R = "pred_traj.txt", "pred_intrinsics.txt"
"""The names of two files of MonST3R and of programs derived from MonST3R: a trajectory with w first, and a file with a
3x3 lens in each line."""
IMU = re.compile(r"_RS_R_")
IMU_NOTE = Reported(
    "The poses are those of EuRoC's IMU, not of a camera, which is mounted at an angle: multiply each by T_BS of the "
    "camera's sensor.yaml."
)


class Columns(NamedTuple):
    """The layout of a trajectory file.

    total: the number of columns.
    columns: the indices of time, position x, y, z and quaternion x, y, z, w.
    lens: the indices of fx, fy, cx, cy; empty if the file has no lens.
    """

    total: int
    columns: list[int]
    lens: Sequence[int] = ()


def tum_columns(lines: Sequence[str]) -> Columns | None:
    """Return a trajectory's layout according to its header, or None without a usable one. The header is the last line
    of text before the numbers, with or without a comment sign. It must name each of the eight columns (see `Columns`)
    once. A header that only states the quaternion order w, x, y, z is also usable: the order is then TUM's, but with w
    first."""
    header = _header(lines)
    names = _names(header)
    found = [_column_of(name) for name in names]
    if "time" not in found:
        found = ["time" if FRAME.search(name) else column for name, column in zip(names, found, strict=True)]
    wanted = ["time", "x", "y", "z", "qx", "qy", "qz", "qw"]
    if any(found.count(name) != 1 for name in wanted):
        return Columns(8, _W_FIRST) if W_FIRST.search(header.lower()) else None
    lens = [names.index(name) for name in LENS] if {*LENS} <= {*names} else ()
    return Columns(len(found), [found.index(name) for name in wanted], lens)


def _header(lines: Sequence[str]) -> str:
    """Return the last line of text before the numbers, without its comment sign."""
    header = ""
    for line in lines:
        text = line.strip().lstrip("#").strip()
        if text and not line.lstrip().startswith("#") and is_number(split_columns(text)[0]):
            break
        header = text or header
    return header


def _names(header: str) -> list[str]:
    """Return a header's column names, in lower case and without units in brackets."""
    names = header.replace(";", ",").split(",") if {",", ";"} & {*header} else header.split()
    return [re.sub(r"[\[(].*", "", name).strip(" \t\"'").lower() for name in names]


def _strange_header(lines: Sequence[str]) -> str:
    """Return the header if it seems to name 8 columns, else "". A header with a comment sign must have at least three
    known names, because any comment may have 8 words."""
    header = _header(lines)
    names = _names(header)
    comment = not any(line.strip() == header for line in lines)
    return header if len(names) == 8 and (not comment or len([*filter(None, map(_column_of, names))]) > 2) else ""


def _column_of(name: str) -> str:
    """Return a column's standard name: time, x, y, z, qx, qy, qz or qw; "" if unknown."""
    if re.search(r"time|stamp|^t$", name):
        return "time"
    if match := re.search(r"(?:^q|quat|rot|orientation).*?([wxyz])$", name):
        return f"q{match[1]}"
    match = re.search(r"^(?:t|p|pos|position|trans|translation|.*\.position)?(?:_\w+?)?[._]?([xyz])$", name)
    return match[1] if match else ""
