"""Tracking of points through a video with OpenCV."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from ..errors import require

SHORTER_SIDE = 270
"""The length in pixels to which the shorter side of each frame is resized for tracking."""
MOST_POINTS, POINT_DISTANCE = 500, 6
"""The maximum number of points tracked at a time, and the minimum distance in pixels of a new point from others."""
FLOW_OPTIONS = {"winSize": (15, 15), "maxLevel": 4, "criteria": (3, 30, 0.01)}
MAX_BACKWARD_ERROR = 0.3
"""The maximum forward-backward error of a tracked point, in pixels."""


@dataclass(frozen=True)
class Tracks:
    """The n tracked points of a video at k keyframes, in frames resized by `resize`.

    frames: [k], the frame numbers of the keyframes.
    points: [k, n, 2], column and row, pixel centres at .5; NaN if hidden.
    size: the width and height of the resized frames.
    upscaling: the factor by which small frames were enlarged, else 1.
    """

    frames: np.ndarray
    points: np.ndarray
    size: tuple[int, int]
    upscaling: float = 1.0

    def shared(self, first: int, last: int) -> np.ndarray:
        """Return a mask [n] of the points that are visible in both keyframes."""
        return ~np.isnan(self.points[[first, last], :, 0]).any(0)


def opencv() -> ModuleType:
    """Return the module cv2. Raises DependencyError if cv2 is missing."""
    return require("cv2", "opencv-python-headless")


def resize(frame: np.ndarray) -> np.ndarray:
    """Return a grey frame, uint8 [H, W], with its shorter side resized to SHORTER_SIDE pixels."""
    cv2 = opencv()
    scale = SHORTER_SIDE / min(frame.shape)
    size = [round(side * scale) for side in frame.shape[::-1]]
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return frame if scale == 1 else cv2.resize(frame, size, interpolation=way)


def track_points(frames: Sequence[np.ndarray], stride: int) -> Tracks:
    """Return the tracks of points through grey frames, uint8 [H, W]. Positions are recorded, and new points begin, at
    keyframes: every `stride`-th frame and the last one."""
    keys = np.unique([*range(0, len(frames), stride), len(frames) - 1])
    here = _corners(frames[0], np.empty((0, 2), np.float32))
    numbers, total = np.arange(len(here)), len(here)
    seen = [(numbers, here)]
    for before, after in zip(keys[:-1], keys[1:], strict=True):
        here, kept = _track(frames[before : after + 1], here)
        new = _corners(frames[after], here)
        numbers = np.concatenate([numbers[kept], total + np.arange(len(new))])
        here, total = np.concatenate([here, new]), total + len(new)
        seen.append((numbers, here))
    points = np.full((len(keys), total, 2), np.nan)
    for row, (numbers, places) in zip(points, seen, strict=True):
        row[numbers] = places + 0.5
    return Tracks(keys, points, frames[0].shape[::-1])


def _corners(picture: np.ndarray, occupied: np.ndarray) -> np.ndarray:
    """Return corners of an image, float32 [n, 2], at least POINT_DISTANCE pixels from the points `occupied` [m, 2]."""
    cv2 = opencv()
    free = np.full(picture.shape, 255, np.uint8)
    for column, row in occupied.astype(int):
        cv2.circle(free, (int(column), int(row)), POINT_DISTANCE, 0, -1)
    most = MOST_POINTS - len(occupied)
    found = cv2.goodFeaturesToTrack(picture, most, 0.005, POINT_DISTANCE, mask=free, blockSize=5) if most > 0 else None
    return np.empty((0, 2), np.float32) if found is None else found.reshape(-1, 2)


def _track(frames: Sequence[np.ndarray], began: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Track points from the first frame to the last. `began` [n, 2] has their positions in the first frame. Return the
    last positions [m, 2] of the reliably tracked points, and a mask [n] of these points."""
    cv2 = opencv()
    if not len(began):
        return began, np.zeros(0, bool)
    ended = began
    for before, after in zip(frames[:-1], frames[1:], strict=True):
        ended, _, _ = cv2.calcOpticalFlowPyrLK(before, after, ended, None, **FLOW_OPTIONS)
    guided = {**FLOW_OPTIONS, "flags": cv2.OPTFLOW_USE_INITIAL_FLOW}
    ended, there, _ = cv2.calcOpticalFlowPyrLK(frames[0], frames[-1], began, ended.copy(), **guided)
    back, here, _ = cv2.calcOpticalFlowPyrLK(frames[-1], frames[0], ended, began.copy(), **guided)
    found = (there & here).reshape(-1) == 1
    inside = np.all((ended >= 0) & (ended <= np.array(frames[0].shape[::-1]) - 1), axis=1)
    kept = found & inside & (np.linalg.norm(back - began, axis=1) < MAX_BACKWARD_ERROR)
    return ended[kept], kept
