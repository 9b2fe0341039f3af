"""Functions that sort frames by file names, times or frame numbers."""

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...errors import CameraError
from ...fields import Reported
from .reading import number_of

T = TypeVar("T")
_INTEGERS, _DECIMALS = re.compile(r"(\d+)"), re.compile(r"(\d+(?:\.\d+)?)")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
NAMES = ("file_path", "img_name", "image", "image_name", "imageName", "file_name", "filename", "frame_name")
TIMES = ("timestamp", "time", "frame_index")
NUMBERS = ("frame_idx", "frame_id", "frame_number", "frame")
IDS = ("index", "id")
ORDER = (*NAMES, *TIMES, *NUMBERS, *IDS)
"""The JSON keys by which frames are sorted, the most reliable first: file names, times, frame numbers, ids."""
BY_TIME = (*TIMES, *NAMES, *NUMBERS, *IDS)
"""The JSON keys by which the frames of a phone scan are sorted, the preferred first. Times come before file names,
which may be random in scans."""
GAPS = "Gaps in names and times are refused; numbers with gaps do not sort."


def natural_key(name: str) -> list[str | int]:
    """Return a sort key that puts frame10 after frame9: the name's parts, text and integers."""
    return [int(part) if index % 2 else part for index, part in enumerate(_INTEGERS.split(name))]


def refuse_gaps(indices: Sequence[float] | np.ndarray, name: str) -> None:
    """Raise CameraError if `indices` do not increase, or if a step exceeds 1.5 times the median step. `name`: the
    prefix of the message."""
    if gap := _gap(indices):
        raise CameraError(f"{name}: frames are missing or out of order between {gap[0]:.10g} and {gap[1]:.10g}")


def sort_by_name(frames: Sequence[T], name: Callable[[T], str], where: str) -> list[T]:
    """Return the frames sorted by the numbers in their file names, or by text if no name has a number. Raise
    CameraError if the numbers have gaps, or if only some names have a number.

    name: returns a frame's file name.
    where: begins error messages.
    """
    names = [_SUFFIX.sub("", name(frame)) for frame in frames]
    bare = [each for each in names if not re.search(r"\d", each)]
    if bare and len(bare) < len(names):
        raise CameraError(f"{where}: {bare[0]} has no number, which other frames have; move it elsewhere or number it")
    if bare:
        return sorted(frames, key=lambda frame: natural_key(name(frame)))
    readings = [reading for pattern in (_DECIMALS, _INTEGERS) if (reading := _columns(names, pattern)) is not None]
    for columns in readings:
        order = _order_without_gaps(columns)
        if order is not None:
            return [frames[at] for at in order]
    ordered = sorted(frames, key=lambda frame: natural_key(name(frame)))
    varying = [column for columns in readings[-1:] for column in columns.T if len(set(column)) > 1]
    last = [float(_INTEGERS.findall(_SUFFIX.sub("", name(frame)))[-1]) for frame in ordered]
    refuse_gaps(np.sort(varying[-1]) if len(varying) == 1 else last, where)
    return ordered


def sort_frames(
    frames: list[Mapping], path: Path, order: Sequence[str] = ORDER
) -> tuple[list[Mapping], tuple[str, ...]]:
    """Return the frames sorted by the first usable key of `order`, or unsorted without one, and notes for the user.
    Raise CameraError for a gap in names or times."""
    unused: dict[str, np.ndarray] = {}
    for key in order:
        values = [frame.get(key) for frame in frames]
        if None in values or all(value == values[0] for value in values):
            continue
        kinds = {type(value) for value in values}
        if key in NAMES and kinds <= {str, int, float}:
            named = [*zip(map(str, values), frames, strict=True)]
            return [frame for _, frame in sort_by_name(named, itemgetter(0), str(path))], ()
        if key in TIMES or (key not in NAMES and kinds <= {int, float}):
            numbers = np.array([number_of(value, f"{path}: {key}") for value in values])
            rank = np.argsort(numbers, kind="stable")
            if key in TIMES:
                refuse_gaps(numbers[rank], f"{path} ({key})")
            if not _gap(numbers[rank]) or (np.diff(numbers) >= 0).all():
                return [frames[at] for at in rank], _contradictions(unused, rank)
            unused |= {key: numbers} if key in NUMBERS else {}
    return frames, _contradictions(unused, np.arange(len(frames)))


def _contradictions(unused: Mapping[str, np.ndarray], rank: np.ndarray) -> tuple[str, ...]:
    return tuple(
        Reported(f"{key} has gaps or repeats and is not used, but falls in the order of the frames; check this order.")
        for key, numbers in unused.items()
        if (np.diff(numbers[rank]) < 0).any()
    )


def _order_without_gaps(columns: np.ndarray) -> np.ndarray | None:
    """Find a column of `columns` [n, k] without gaps whose order also sorts every column to its left. Return the row
    indices in this order, int [n], or None if no column qualifies."""
    for at, column in enumerate(columns.T):
        order = np.argsort(column, kind="stable")
        if not _gap(column[order]) and (np.diff(columns[order, :at], axis=0) >= 0).all():
            return order
    return None


def _columns(names: Sequence[str], pattern: re.Pattern[str]) -> np.ndarray | None:
    """Return the numbers [n, k] that `pattern` finds in n names, or None if the text around them differs."""
    parts = [pattern.split(name) for name in names]
    if len({tuple(each[::2]) for each in parts}) > 1:
        return None
    return np.array([[float(number) for number in each[1::2]] for each in parts])


def _gap(indices: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    values = np.asarray(indices, dtype=np.float64)
    steps = np.diff(values)
    if not len(steps):
        return None
    bad = np.flatnonzero((steps <= 0) | (steps > 1.5 * np.median(steps)))
    return (float(values[bad[0]]), float(values[bad[0] + 1])) if len(bad) else None
