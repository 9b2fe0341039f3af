"""Detection of a stuck camera: its position changes, but the frames do not, as in front of a wall."""

from __future__ import annotations

from statistics import median

import numpy as np

HINT = "the image no longer moves: turn, or walk another way"
MOST_TURN_DEG = 0.5
"""Chunks are compared only if the camera rotated by at most this many degrees between their last frames."""
LEAST_STEP = 0.05
"""Chunks are compared only if the camera moved at least this far per latent frame, as a fraction of the largest step in
training."""
WARM_UP = 8
"""Chunks are judged only after this many latent frames with a walking camera."""
LASTS = 6
"""The camera counts as stuck if the frames show no change for this many latent frames, rounded up to full chunks."""
UNCHANGED = 0.15
"""A chunk is unchanged if the ratio of its image change to the camera's movement is below this fraction of the ratio's
median in earlier chunks."""
SIDE = 64
"""Frames are reduced to at most this many pixels on the longer side before they are compared."""


class StuckWatch:
    """A detector of a stuck camera for one walk (a steered video) with chunks of `chunk` latent frames."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._last: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._usual: list[float] = []
        self._still = 0

    def add_chunk(self, pixels: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> bool:
        """Add a chunk's last frame, uint8 [H, W, 3], and its camera's position [3] and rotation [3, 3]. Return True
        once when the camera becomes stuck."""
        small, before = _reduced(pixels), self._last
        self._last = small, position, rotation
        if before is None or before[0].shape != small.shape:
            return False
        step = float(np.linalg.norm(position - before[1])) / self._chunk
        turned = np.abs(rotation - before[2]).max() > np.radians(MOST_TURN_DEG)
        if step < LEAST_STEP or turned:
            self._still = 0
            return False
        change = float(np.abs(small - before[0]).mean()) / step
        known = len(self._usual) * self._chunk >= WARM_UP
        if known and change < UNCHANGED * median(self._usual):
            self._still += 1
            return self._still == -(-LASTS // self._chunk)
        self._still = 0
        self._usual = [*self._usual, change][-4 * WARM_UP :]
        return False


def _reduced(pixels: np.ndarray) -> np.ndarray:
    step = -(-max(pixels.shape[:2]) // SIDE)
    height, width = (side // step * step for side in pixels.shape[:2])
    grey = pixels[:height, :width].mean(2, dtype=np.float32)
    return np.asarray(grey.reshape(height // step, step, width // step, step).mean((1, 3)))
