"""Detection of a walk whose camera moves on while the frames stand still, because the model shows a wall."""

from __future__ import annotations

from statistics import median

import numpy as np

HINT = "the image no longer moves: turn, or walk another way"
MOST_TURN_DEG = 0.5
"""The largest rotation of a chunk, in degrees, that is compared: a rotation moves the frames before a wall too."""
LEAST_STEP = 0.05
"""The smallest translation of a latent frame that is compared, as a fraction of the longest step."""
KNOWN = 8
"""The number of walked latent frames after which the usual change is known: two seconds."""
LASTS = 6
"""The number of latent frames that must stand still: one and a half seconds."""
STILL = 0.15
"""The fraction of the usual change for the same way below which frames stand still."""
SIDE = 64
"""The largest side, in pixels, of the reduced frames that are compared."""


class StuckWatch:
    """The detector of one walk with chunks of `chunk` latent frames."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._last: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._usual: list[float] = []
        self._still = 0

    def see(self, pixels: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> bool:
        """Add a chunk's last frame uint8 [H, W, 3], its position [3] in longest steps, and its rotation [3, 3]. Return
        true for the one chunk at which the frames are found to stand still."""
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
        known = len(self._usual) * self._chunk >= KNOWN
        if known and change < STILL * median(self._usual):
            self._still += 1
            return self._still == -(-LASTS // self._chunk)
        self._still = 0
        self._usual = [*self._usual, change][-4 * KNOWN :]
        return False


def _reduced(pixels: np.ndarray) -> np.ndarray:
    step = -(-max(pixels.shape[:2]) // SIDE)
    height, width = (side // step * step for side in pixels.shape[:2])
    grey = pixels[:height, :width].mean(2, dtype=np.float32)
    return np.asarray(grey.reshape(height // step, step, width // step, step).mean((1, 3)))
