"""Detection of a degrading video during a walk: each chunk's figures are compared with the first two seconds.

The bounds are those of `lingbot-world measure`. That command tracks places, so it can distinguish a dark wall from a
video that becomes dark; here whole frames are compared. So two bounds must be exceeded, or the lower bound of
sharpness, and this has to last for several seconds."""

from __future__ import annotations

from statistics import median

import numpy as np
from torch import Tensor

from ..measure.drift_faults import BLURRED, BLURRED_PLACES, DARKER, PALE, TINTED
from ..measure.drift_figures import colourfulness

FIRST = 8
"""The number of latent frames, of four frames each, that later ones are compared with: two seconds."""
LASTS = 16
"""The number of latent frames for which bounds must be exceeded: four seconds."""
SIDE = 128
"""The largest side, in pixels, of the reduced frame that is measured."""
HINT = "the video is degrading: R restarts from the image"
Row = dict[str, float]


class DriftWatch:
    """The drift detector of one walk with chunks of `chunk` latent frames."""

    def __init__(self, chunk: int) -> None:
        self._first_chunks, self._lasts = max(1, FIRST // chunk), max(1, LASTS // chunk)
        self._first: list[Row] = []
        self._last: Row | None = None
        self._passed = 0

    def see(self, latent: Tensor, pixels: np.ndarray) -> bool:
        """Add a chunk's latent [1, 16, n, h, w] and its last frame uint8 [H, W, 3]. Return true for the one chunk at
        which the video is found to degrade."""
        row = _figures(latent, pixels)
        if len(self._first) < self._first_chunks:
            self._first.append(row)
            return False
        self._last = row
        self._passed = self._passed + 1 if self._passes(row) else 0
        return self._passed == self._lasts

    @property
    def ratios(self) -> Row | None:
        """The latent's standard deviation (`spread`), the `sharpness` and the `colour` of the last chunk as fractions
        of the first two seconds, and the shift of the latent's `mean` in standard deviations; None during the first two
        seconds."""
        if self._last is None:
            return None
        spread = self._at_first("spread")
        return {
            "mean": (self._last["mean"] - self._at_first("mean")) / max(spread, 1e-6),
            **{name: self._share(self._last, name) for name in ("spread", "sharpness", "colour")},
        }

    def _passes(self, row: Row) -> bool:
        sharpness = self._share(row, "sharpness")
        beyond = (
            sharpness < BLURRED,
            self._share(row, "colour") < PALE,
            abs(row["tint"] - self._at_first("tint")) > TINTED,
            abs(row["brightness"] - self._at_first("brightness")) > DARKER,
        )
        return sum(beyond) > 1 or sharpness < BLURRED_PLACES

    def _share(self, row: Row, name: str) -> float:
        return row[name] / max(self._at_first(name), 1e-6)

    def _at_first(self, name: str) -> float:
        return median(row[name] for row in self._first)


def _figures(latent: Tensor, pixels: np.ndarray) -> Row:
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
