"""The inputs of a walk (a steered video), and their record, from which the walk can be repeated exactly.

Each row of the record is a JSON object, and `latent_frame` is the first latent frame of its chunk. A row of inputs has
the fields `axes` [n, 4] and `look` [2] of `FrameInputs`; n is 1 if all video frames of the chunk have the same axes. A
chunk without such a row had no input.

A row with `rebuild` states that keys and values were recomputed before the chunk. The reason was a return to an earlier
chunk or, if `refresh` is true, another prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FILE = "inputs.jsonl"
"""The file to which rows are appended during a walk. When the walk ends, the rows are moved into walk.json."""
Row = dict[str, Any]


class Input(NamedTuple):
    """One input of the user.

    kind: hold (keys), look (mouse), stick (gamepad), script (timed keys), prompt, or back (a return to an earlier
        chunk). For world events: event (the user switches one), or time (one begins or ends at its set time).
    number: the number that the sender gave to the input, or None.
    arrived: the time of its arrival, in seconds of time.monotonic.
    row: the index of the first video frame that the input affects, counted in its chunk.
    """

    kind: str
    number: int | None
    arrived: float
    row: int = 0


class FrameInputs(NamedTuple):
    """The user's inputs for the next n video frames.

    axes: float64 [n, 4], the requested speeds forward, right, yaw and pitch. They are from -1 to 1, but with Shift the
        first two are from -2 to 2.
    look: the mouse rotation (yaw, pitch) in degrees, for all n frames together.
    last_number: the number that the sender gave to the newest numbered input so far, or None.
    waited: the seconds since the newest input arrived, or None if none arrived since the previous frames.
    records: a record of each input that arrived since the previous frames.
    """

    axes: np.ndarray
    look: tuple[float, float]
    last_number: int | None
    waited: float | None = None
    records: tuple[Input, ...] = ()


class InputLog:
    """The file to which a walk (a steered video) in progress writes its inputs. All methods may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = self._path.open("wb", 0)

    def add_inputs(self, latent_frame: int, inputs: FrameInputs) -> None:
        """Add a row with the inputs of the chunk that begins at `latent_frame`. A chunk without inputs gets no row."""
        axes = inputs.axes[:1] if (inputs.axes == inputs.axes[:1]).all() else inputs.axes
        if axes.any() or any(inputs.look):
            row = {"latent_frame": latent_frame, "axes": axes.tolist(), "look": [*inputs.look]}
            self._add(row if inputs.last_number is None else {**row, "event": inputs.last_number})

    def add_rebuild(self, latent_frame: int, *, refresh: bool) -> None:
        """Add a row which records that keys and values were recomputed before `latent_frame`. The cause was a new
        prompt if `refresh` is true, else a return to an earlier chunk."""
        self._add({"latent_frame": latent_frame, "rebuild": True, "refresh": refresh})

    def cut(self, latent_frames: int) -> None:
        """Remove the rows of all chunks that begin at or after the latent frame number `latent_frames`."""
        rows = [row for row in self.rows() if row["latent_frame"] < latent_frames]
        self._file.truncate(0)
        self._file.seek(0)
        for row in rows:
            self._add(row)

    def rows(self) -> list[Row]:
        return _read_rows(self._path)

    def close(self, *, delete: bool) -> None:
        """Close the file. If `delete` is true, also delete it, because the caller has copied its rows into
        walk.json."""
        self._file.close()
        if delete:
            self._path.unlink(missing_ok=True)

    def _add(self, row: Row) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")


def read_inputs(folder: Path, settings: dict[str, Any]) -> dict[int, list[Row]]:
    """Return the rows of a saved walk's inputs, grouped by the latent frame at which their chunk begins.

    `settings` is the contents of walk.json. It has no inputs if the walk's process was killed; the rows are then read
    from FILE in `folder`. Raises OSError if FILE cannot be read, and KeyError or ValueError for an invalid row.
    """
    found: dict[int, list[Row]] = {}
    for row in settings["inputs"] if "inputs" in settings else _read_rows(folder / FILE):
        found.setdefault(row["latent_frame"], []).append(row)
    return found


def inputs_from_rows(rows: Iterable[Row], frames: int) -> FrameInputs:
    """Return the inputs of a chunk with `frames` video frames. `rows` are the recorded rows of this chunk. If all lack
    inputs, the result has zeros."""
    for row in rows:
        if "axes" in row:
            axes = np.broadcast_to(np.array(row["axes"], dtype=np.float64).reshape(-1, 4), (frames, 4))
            return FrameInputs(axes.copy(), (row["look"][0], row["look"][1]), row.get("event"))
    return FrameInputs(np.zeros((frames, 4)), (0.0, 0.0), None)


def _read_rows(path: Path) -> list[Row]:
    """Return the recorded rows in a file. An incomplete last line, which a killed process may leave, is skipped."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
