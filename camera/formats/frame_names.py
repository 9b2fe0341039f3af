"""Ordering of frames by their file names or times."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...errors import CameraError
from .reading import number_of

T = TypeVar("T")
_INTEGERS, _DECIMALS = re.compile(r"(\d+)"), re.compile(r"(\d+(?:\.\d+)?)")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")


def words_and_numbers(name: str) -> list[str | int]:
    """Split a name into text and integers: a sort key that puts frame10 after frame9."""
    return [int(part) if index % 2 else part for index, part in enumerate(_INTEGERS.split(name))]


def refuse_gaps(indices: Sequence[float] | np.ndarray, name: str) -> None:
    """Raise CameraError if frame numbers or times [n] do not rise in even steps: a frame is missing or out of order."""
    if gap := _gap(indices):
        raise CameraError(f"{name}: frames are missing or out of order between {gap[0]:.10g} and {gap[1]:.10g}")


def in_name_order(frames: Sequence[T], name: Callable[[T], str], where: str) -> list[T]:
    """Sort frames by their file names: by the integer or decimal number that varies from name to name.

    Names are sorted as text if none has a number. Raises CameraError if no number rises in even steps, and for a name
    without a number among others, such as a thumbnail's."""
    names = [_SUFFIX.sub("", name(frame)) for frame in frames]
    bare = [each for each in names if not re.search(r"\d", each)]
    if bare and len(bare) < len(names):
        raise CameraError(f"{where}: {bare[0]} has no number, which other frames have; move it elsewhere or number it")
    if bare:
        return sorted(frames, key=lambda frame: words_and_numbers(name(frame)))
    readings = [reading for pattern in (_DECIMALS, _INTEGERS) if (reading := _columns(names, pattern)) is not None]
    for columns in readings:
        order = _even_order(columns)
        if order is not None:
            return [frames[at] for at in order]
    ordered = sorted(frames, key=lambda frame: words_and_numbers(name(frame)))
    varying = [column for columns in readings[-1:] for column in columns.T if len(set(column)) > 1]
    last = [float(_INTEGERS.findall(_SUFFIX.sub("", name(frame)))[-1]) for frame in ordered]
    refuse_gaps(np.sort(varying[-1]) if len(varying) == 1 else last, where)
    return ordered


def in_time_order(frames: list[Mapping], keys: Sequence[str], path: Path, *, even: bool = True) -> list[Mapping]:
    """Sort frames by the first of the `keys` that all frames have. Without such a key their order is unchanged.

    With `even`, raises CameraError if the times do not rise in even steps."""
    for key in keys:
        if all(key in frame for frame in frames):
            times = np.array([number_of(frame[key], f"{path}: {key}") for frame in frames])
            order = np.argsort(times, kind="stable")
            if even:
                refuse_gaps(times[order], f"{path} ({key})")
            return [frames[at] for at in order]
    return frames


def _even_order(columns: np.ndarray) -> np.ndarray | None:
    """Return the order [n] by the first column of [n, k] that rises in even steps while earlier columns never fall."""
    for at, column in enumerate(columns.T):
        order = np.argsort(column, kind="stable")
        if not _gap(column[order]) and (np.diff(columns[order, :at], axis=0) >= 0).all():
            return order
    return None


def _columns(names: Sequence[str], pattern: re.Pattern[str]) -> np.ndarray | None:
    """Return the numbers [n, k] in the names; None if the names differ in more than numbers."""
    parts = [pattern.split(name) for name in names]
    if len({tuple(each[::2]) for each in parts}) > 1:
        return None
    return np.array([[float(number) for number in each[1::2]] for each in parts])


def _gap(indices: Sequence[float] | np.ndarray) -> tuple[float, float] | None:
    """Return the first two neighbours between which frames are missing or out of order; None without a gap."""
    values = np.asarray(indices, dtype=np.float64)
    steps = np.diff(values)
    if not len(steps):
        return None
    bad = np.flatnonzero((steps <= 0) | (steps > 1.5 * np.median(steps)))
    return (float(values[bad[0]]), float(values[bad[0] + 1])) if len(bad) else None
