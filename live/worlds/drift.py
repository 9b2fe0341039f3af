"""Detection of a walk (a steered video) that degrades, by comparing each chunk with the first two seconds."""

from __future__ import annotations

from statistics import median

import numpy as np
from torch import Tensor

from ...measure.drift_faults import MAX_BRIGHTNESS, MAX_TINT, MIN_COLOUR, MIN_SHARPNESS, MIN_TRACKED_SHARPNESS
from ...measure.drift_metrics import colourfulness

REFERENCE_FRAMES = 8
"""The number of latent frames at the walk's start with which later chunks are compared. DriftWatch rounds the number
down to full chunks, at least one."""
LASTS = 16
"""A degradation is reported after this many latent frames, rounded down to full chunks."""
SIDE = 128
"""Frames are reduced to at most this many pixels on the longer side before they are measured."""
HINT = "the video is degrading: R restarts from the image"
Row = dict[str, float]


class DriftWatch:
    """A detector of degradation for one walk (a steered video) with chunks of `chunk` latent frames."""

    def __init__(self, chunk: int) -> None:
        self._first_chunks, self._lasts = max(1, REFERENCE_FRAMES // chunk), max(1, LASTS // chunk)
        self._first: list[Row] = []
        self._last: Row | None = None
        self._bad_chunks = 0

    def add_chunk(self, latent: Tensor, pixels: np.ndarray) -> bool:
        """Add a chunk's latent [1, 16, n, h, w] and last frame, uint8 [H, W, 3]. Return True once for each degradation,
        when it has lasted for LASTS latent frames. Otherwise return False."""
        row = _measure(latent, pixels)
        if len(self._first) < self._first_chunks:
            self._first.append(row)
            return False
        self._last = row
        self._bad_chunks = self._bad_chunks + 1 if self._is_bad(row) else 0
        return self._bad_chunks == self._lasts

    @property
    def ratios(self) -> Row | None:
        """The last chunk's measures relative to the walk's start: `mean` and `spread` of the latent, `sharpness` and
        `colour` of the frame. None before the first comparison."""
        if self._last is None:
            return None
        spread = self._at_first("spread")
        return {
            "mean": (self._last["mean"] - self._at_first("mean")) / max(spread, 1e-6),
            **{name: self._ratio(self._last, name) for name in ("spread", "sharpness", "colour")},
        }

    def _is_bad(self, row: Row) -> bool:
        sharpness = self._ratio(row, "sharpness")
        beyond = (
            self._ratio(row, "colour") < MIN_COLOUR,
            abs(row["tint"] - self._at_first("tint")) > MAX_TINT,
            abs(row["brightness"] - self._at_first("brightness")) > MAX_BRIGHTNESS,
        )
        # the view of another room can change two of the three
        needed = 3 if MIN_SHARPNESS <= sharpness <= 1 / MIN_SHARPNESS else 1
        return sum(beyond) >= needed or sharpness < MIN_TRACKED_SHARPNESS

    def _ratio(self, row: Row, name: str) -> float:
        return row[name] / max(self._at_first(name), 1e-6)

    def _at_first(self, name: str) -> float:
        return median(row[name] for row in self._first)


def _measure(latent: Tensor, pixels: np.ndarray) -> Row:
    step = -(-max(pixels.shape[:2]) // SIDE)
    height, width = (side // step * step for side in pixels.shape[:2])
    small = pixels[:height, :width].reshape(height // step, step, width // step, step, 3)
    colours = small.mean((1, 3), dtype=np.float32)
    grey = colours @ np.array([0.299, 0.587, 0.114], np.float32)
    edges = 4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    return {
        "mean": float(latent.mean()),
        "spread": float(latent.std()),
        "sharpness": float(edges.var() / (grey.var() + 1)),
        "colour": colourfulness(colours),
        "tint": float((colours[..., 0] - colours[..., 2]).mean()),
        "brightness": float(grey.mean()),
    }
