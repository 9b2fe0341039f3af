"""The inputs of a walk, each with the latent frame where it took effect: enough to repeat the walk exactly.

A row is a JSON object. `latent_frame` is the first one of its chunk. `axes` [n, 4] (n is 1 if all video frames of the
chunk have the same) and `look` [2] are those of `Wishes`; a chunk without a row had no input. `rebuild`: keys and
values were recomputed there, after a step back, or (`refresh`) with another prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .controls import Wishes

FILE = "inputs.jsonl"
"""The file that rows are appended to during a walk. At the walk's end the rows move to walk.json."""

Row = dict[str, Any]


class InputLog:
    """The input file of a walk in progress. Methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = self._path.open("wb", 0)

    def add_wishes(self, latent_frame: int, wishes: Wishes) -> None:
        """Add the inputs of a chunk."""
        axes = wishes.axes[:1] if (wishes.axes == wishes.axes[:1]).all() else wishes.axes
        if axes.any() or any(wishes.look):
            row = {"latent_frame": latent_frame, "axes": axes.tolist(), "look": [*wishes.look]}
            self._add(row if wishes.event is None else {**row, "event": wishes.event})

    def add_rebuild(self, latent_frame: int, *, refresh: bool) -> None:
        self._add({"latent_frame": latent_frame, "rebuild": True, "refresh": refresh})

    def cut(self, latent_frames: int) -> None:
        """Remove the rows from this latent frame on."""
        rows = [row for row in self.rows() if row["latent_frame"] < latent_frames]
        self._file.truncate(0)
        self._file.seek(0)
        for row in rows:
            self._add(row)

    def rows(self) -> list[Row]:
        return _rows(self._path)

    def close(self, *, delete: bool) -> None:
        """Close the file, and delete it if its rows are in walk.json."""
        self._file.close()
        if delete:
            self._path.unlink(missing_ok=True)

    def _add(self, row: Row) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")


def read_inputs(folder: Path, head: dict[str, Any]) -> list[Row]:
    """Return a walk's rows in order: from its walk.json `head`, or from the file if the process was killed."""
    return head["inputs"] if "inputs" in head else _rows(folder / FILE)


def rows_by_frame(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Return the rows of each latent frame that has any, in order."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["latent_frame"], []).append(row)
    return found


def wishes_of(rows: Iterable[Row], frames: int) -> Wishes:
    """Return the wishes of a chunk of `frames` video frames from its rows."""
    for row in rows:
        if "axes" in row:
            axes = np.broadcast_to(np.array(row["axes"], dtype=np.float64).reshape(-1, 4), (frames, 4))
            return Wishes(axes.copy(), (row["look"][0], row["look"][1]), row.get("event"))
    return Wishes(np.zeros((frames, 4)), (0.0, 0.0), None)


def _rows(path: Path) -> list[Row]:
    """Return the complete rows: a killed process may have left the last one incomplete."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]
