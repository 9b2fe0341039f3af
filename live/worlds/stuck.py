"""Detection of a stuck camera: its position changes, but the frames do not. The model then shows a wall, through which
it does not let the camera pass."""

from __future__ import annotations

from statistics import median

import numpy as np

HINT = "the image no longer moves: turn, or walk another way"
MOST_TURN_DEG = 0.5
"""The last frames of two successive chunks are compared only if the camera rotated by at most this many degrees between
them. A larger rotation changes the frames even in front of a wall."""
LEAST_STEP = 0.05
"""Frames are compared only if the camera moved by at least this much per latent frame, as a fraction of the longest
step. The longest step is the largest translation per latent frame that the model was trained with."""
KNOWN = 8
"""Chunks are judged only after this many latent frames (two seconds) with a walking camera, which show how much frames
usually change."""
LASTS = 6
"""The camera is stuck after this many successive latent frames (one and a half seconds) without change, rounded up to
full chunks."""
STILL = 0.15
"""A chunk counts as unchanged if its change is less than this fraction of the usual change.

A chunk's change is the mean difference between its last frame and that of the chunk before, divided by the camera's
translation per latent frame. The usual change is the median over recent chunks that were not counted as unchanged.
"""
SIDE = 64
"""The longer side of frames for the comparison has at most this many pixels. Larger frames are reduced."""


class StuckWatch:
    """A detector of a stuck camera for one walk (a steered video) with chunks of `chunk` latent frames."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._last: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._usual: list[float] = []
        self._still = 0

    def add_chunk(self, pixels: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> bool:
        """Add a chunk, and return True if the camera has become stuck with it.

        pixels: the last frame of the chunk, uint8 [H, W, 3].
        position: the camera's position [3] at this frame, in units of the longest step.
        rotation: the camera-to-world rotation [3, 3] at this frame.

        The camera is stuck after LASTS latent frames without change, rounded up to full chunks. It is reported once:
        further chunks return False until the frames change again. The result is also False while the camera stands or
        turns, and before the usual change is known.
        """
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
