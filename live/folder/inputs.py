"""The record of the user's inputs in a walk (a steered video), from which the walk can be replayed exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FILE = "inputs.jsonl"
"""The file of a running walk's inputs, which move into walk.json when the walk ends."""
Row = dict[str, Any]


class Input(NamedTuple):
    """One input of the user.

    kind: hold, look, stick, script, prompt, back, event, or time (a scheduled event).
    number: the sender's id of the input, or None.
    arrived: the time of arrival by time.monotonic.
    row: the first affected row of the chunk's inputs, which have one row per video frame.
    """

    kind: str
    number: int | None
    arrived: float
    row: int = 0


class FrameInputs(NamedTuple):
    """The user's inputs for the next n video frames.

    axes: float64 [n, 4], speeds forward, right, yaw and pitch; 1 is full speed.
    look: the total mouse rotation (yaw, pitch) for the n frames, in degrees.
    last_number: the id of the newest input that has an id; None if no input had one.
    waited: seconds since the newest input, with or without an id; None if none arrived since the previous frames.
    records: the inputs that arrived since the previous frames.
    """

    axes: np.ndarray
    look: tuple[float, float]
    last_number: int | None
    waited: float | None = None
    records: tuple[Input, ...] = ()


class InputLog:
    """The file to which a running walk's inputs are written. All methods may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file = self._path.open("wb", 0)

    def add_inputs(self, latent_frame: int, inputs: FrameInputs) -> None:
        """Add a row for the chunk that begins at `latent_frame`, unless the inputs are all zero."""
        axes = inputs.axes[:1] if (inputs.axes == inputs.axes[:1]).all() else inputs.axes
        if axes.any() or any(inputs.look):
            row = {"latent_frame": latent_frame, "axes": axes.tolist(), "look": [*inputs.look]}
            self._add(row if inputs.last_number is None else {**row, "event": inputs.last_number})

    def add_rebuild(self, latent_frame: int, *, new_prompt: bool) -> None:
        """Record that the KV cache was recomputed: for a new prompt, or after a return to an earlier chunk."""
        self._add({"latent_frame": latent_frame, "rebuild": True, "refresh": new_prompt})

    def cut(self, latent_frames: int) -> None:
        """Keep the rows of the first `latent_frames` latent frames, and remove the later rows."""
        rows = [row for row in self.rows() if row["latent_frame"] < latent_frames]
        self._file.truncate(0)
        self._file.seek(0)
        for row in rows:
            self._add(row)

    def rows(self) -> list[Row]:
        return _read_rows(self._path)

    def close(self, *, delete: bool) -> None:
        self._file.close()
        if delete:
            self._path.unlink(missing_ok=True)

    def _add(self, row: Row) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")


def read_inputs(folder: Path, settings: dict[str, Any]) -> dict[int, list[Row]]:
    """Return a saved walk's input rows, grouped by their chunk's first latent frame. `settings`, the content of
    walk.json, has the rows of an ended walk. The rows of an unfinished walk are in inputs.jsonl. Raises OSError,
    KeyError or ValueError if they are missing or invalid."""
    found: dict[int, list[Row]] = {}
    for row in settings["inputs"] if "inputs" in settings else _read_rows(folder / FILE):
        found.setdefault(row["latent_frame"], []).append(row)
    return found


def inputs_from_rows(rows: Iterable[Row], frames: int) -> FrameInputs:
    """Return the inputs of a chunk with `frames` video frames from the chunk's rows, or zeros if no row has inputs."""
    for row in rows:
        if "axes" in row:
            axes = np.broadcast_to(np.array(row["axes"], dtype=np.float64).reshape(-1, 4), (frames, 4))
            return FrameInputs(axes.copy(), (row["look"][0], row["look"][1]), row.get("event"))
    return FrameInputs(np.zeros((frames, 4)), (0.0, 0.0), None)


def _read_rows(path: Path) -> list[Row]:
    """Return the rows in a file, without an incomplete last line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
