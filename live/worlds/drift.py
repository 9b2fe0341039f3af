"""Detection of a walk (a steered video) that degrades, by a comparison of each chunk with the first two seconds.

A chunk is bad in three cases:

- Its sharpness is beyond its limits, and so is one of colourfulness, tint and brightness.
- Colourfulness, tint and brightness are all beyond their limits.
- Its sharpness is below a stricter limit.

The detector reports a drift after four seconds of bad chunks.

The limits are those of the command `lingbot-world measure`. Sharpness also has an upper limit, because an image can
dissolve into hard edges. The command tracks parts of the scene through the video, so it can distinguish a dark wall
from a video that becomes dark. This module compares whole frames, so the view of another room can change two of
colourfulness, tint and brightness. These two alone therefore do not make a chunk bad.
"""

from __future__ import annotations

from statistics import median

import numpy as np
from torch import Tensor

from ...measure.drift_faults import BLURRED, BLURRED_PLACES, DARKER, PALE, TINTED
from ...measure.drift_metrics import colourfulness

FIRST = 8
"""Later chunks are compared with the first 8 latent frames of a walk (two seconds). The number of latent frames is
rounded down to full chunks."""
LASTS = 16
"""A drift is reported when all chunks of the last 16 latent frames (four seconds) are bad. The number of latent frames
is rounded down to full chunks."""
SIDE = 128
"""The longer side of frames for the measurement has at most this many pixels. Larger frames are reduced."""
HINT = "the video is degrading: R restarts from the image"
Row = dict[str, float]


class DriftWatch:
    """A detector of degradation for one walk (a steered video). `chunk` is the number of latent frames in a chunk."""

    def __init__(self, chunk: int) -> None:
        self._first_chunks, self._lasts = max(1, FIRST // chunk), max(1, LASTS // chunk)
        self._first: list[Row] = []
        self._last: Row | None = None
        self._bad_chunks = 0

    def add_chunk(self, latent: Tensor, pixels: np.ndarray) -> bool:
        """Add a chunk, and return whether a drift must be reported now.

        This is so if the last LASTS latent frames, up to this chunk, are all in bad chunks. The drift is reported once:
        further bad chunks return False until a good chunk restarts the count.

        latent: the chunk's latent [1, 16, n, h, w].
        pixels: the last frame of the chunk, uint8 [H, W, 3].
        """
        row = _measure(latent, pixels)
        if len(self._first) < self._first_chunks:
            self._first.append(row)
            return False
        self._last = row
        self._bad_chunks = self._bad_chunks + 1 if self._is_bad(row) else 0
        return self._bad_chunks == self._lasts

    @property
    def ratios(self) -> Row | None:
        """Four numbers that compare the last chunk with the start of the walk (see FIRST), or None before the first
        comparison.

        spread: the latent's standard deviation, as a fraction of its value at the start.
        sharpness: the sharpness, as a fraction of its value at the start.
        colour: the colourfulness, as a fraction of its value at the start.
        mean: the change of the latent's mean, in standard deviations of the latent at the start.
        """
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
            self._ratio(row, "colour") < PALE,
            abs(row["tint"] - self._at_first("tint")) > TINTED,
            abs(row["brightness"] - self._at_first("brightness")) > DARKER,
        )
        needed = 3 if BLURRED <= sharpness <= 1 / BLURRED else 1
        return sum(beyond) >= needed or sharpness < BLURRED_PLACES

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
