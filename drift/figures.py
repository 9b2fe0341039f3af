"""What each frame of a video looks like, in numbers, and how far it is from the frame before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import InputError, require

LONGER_SIDE = 480
"""Pixels that the longer side of a larger picture is reduced to."""
THUMBNAIL = (32, 18)
"""Columns and rows of the small picture that repeats are looked for in."""


@dataclass(frozen=True)
class Figures:
    """A number [f] for each frame, and thumbnails float32 [f, 18, 32] of its grey values, 0 to 255.

    `sharpness`: variance of the Laplacian over that of the grey values, so that contrast cancels. `colourfulness`: that
    of Hasler and Suesstrunk (2003). `brightness`: mean grey value. `hue`: mean red minus mean blue. `change`: mean
    absolute difference of grey values to the frame before, 0 for the first."""

    sharpness: np.ndarray
    colourfulness: np.ndarray
    brightness: np.ndarray
    hue: np.ndarray
    change: np.ndarray
    thumbnails: np.ndarray
    fps: float

    def __len__(self) -> int:
        return len(self.brightness)


def measure_frames(frames: Iterable[np.ndarray], fps: float) -> Figures:
    """The figures of frames uint8 [H, W, 3], read once. Raises InputError for fewer than two; DependencyError without
    OpenCV."""
    cv2 = require("cv2", "opencv-python-headless")
    rows, small = [], []
    before: np.ndarray | None = None
    for frame in frames:
        scale = LONGER_SIDE / max(frame.shape[:2])
        if scale < 1:
            size = [round(side * scale) for side in frame.shape[1::-1]]
            frame = cv2.resize(frame, size, interpolation=cv2.INTER_AREA)
        grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY).astype(np.float32)
        change = 0.0 if before is None or before.shape != grey.shape else float(np.abs(grey - before).mean())
        rows.append((*_look(frame.astype(np.float32), grey), change))
        small.append(cv2.resize(grey, THUMBNAIL, interpolation=cv2.INTER_AREA))
        before = grey
    if len(rows) < 2:
        raise InputError(f"a video of {len(rows)} frames: expected at least 2")
    sharpness_to_change = np.array(rows).T
    return Figures(*sharpness_to_change, thumbnails=np.stack(small), fps=fps)  # type: ignore[misc]


def _look(colours: np.ndarray, grey: np.ndarray) -> tuple[float, float, float, float]:
    """Sharpness, colourfulness, brightness and hue of colours [h, w, 3] and grey values [h, w], 0 to 255."""
    cv2 = require("cv2", "opencv-python-headless")
    smooth = cv2.GaussianBlur(grey, (0, 0), 0.7)  # noise is no sharpness
    sharpness = float(cv2.Laplacian(smooth, cv2.CV_32F).var() / (grey.var() + 1))
    red, green, blue = (colours[..., channel] for channel in range(3))
    one, two = red - green, (red + green) / 2 - blue
    colourfulness = np.hypot(one.std(), two.std()) + 0.3 * np.hypot(one.mean(), two.mean())
    return sharpness, float(colourfulness), float(grey.mean()), float(red.mean() - blue.mean())
