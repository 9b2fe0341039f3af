"""Points of a video followed from keyframe to keyframe, by OpenCV."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from ..errors import require

SHORTER_SIDE = 270
"""Pixels that the shorter side of a picture is brought to: everything here is measured in those."""
MOST_POINTS, APART = 500, 6
"""Points followed at a time, and pixels from one to the next where it begins."""
LOOK = {"winSize": (15, 15), "maxLevel": 4, "criteria": (3, 30, 0.01)}
FARTHEST_BACK = 0.3
"""Pixels by which a point that was followed there and back may miss where it began."""


@dataclass(frozen=True)
class Tracks:
    """Where points are in keyframes: `points` [k, n, 2] in pixels of a picture `size` (width, height), NaN where one is
    not seen; `frames` [k] are the keyframes' numbers. Pixel centres lie at .5, as in the intrinsics. `blown` is how
    many of those pixels one of the video takes, 1 at least: what is wrong by part of a pixel grows with it."""

    frames: np.ndarray
    points: np.ndarray
    size: tuple[int, int]
    blown: float = 1.0

    def both(self, first: int, last: int) -> np.ndarray:
        """Which points [n] two keyframes see."""
        return ~np.isnan(self.points[[first, last], :, 0]).any(0)


def opencv() -> ModuleType:
    """OpenCV's module. Raises DependencyError, with the command that installs it, where it is missing."""
    return require("cv2", "opencv-python-headless")


def brought_to_size(frame: np.ndarray) -> np.ndarray:
    """A picture uint8 [H, W] with a shorter side of SHORTER_SIDE pixels."""
    cv2 = opencv()
    scale = SHORTER_SIDE / min(frame.shape)
    size = [round(side * scale) for side in frame.shape[::-1]]
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return frame if scale == 1 else cv2.resize(frame, size, interpolation=way)


def follow(frames: Sequence[np.ndarray], stride: int) -> Tracks:
    """Points followed through `frames` (uint8 [H, W], of one size), keyframes `stride` apart; the last frame is one.

    Points go from frame to frame, then once more from one keyframe to the next and back: those that do not come back
    to where they were are lost. New ones begin in every keyframe where there are none.
    """
    keys = np.unique([*range(0, len(frames), stride), len(frames) - 1])
    here = _corners(frames[0], np.empty((0, 2), np.float32))
    numbers, total = np.arange(len(here)), len(here)
    seen = [(numbers, here)]
    for before, after in zip(keys[:-1], keys[1:], strict=True):
        here, kept = _between(frames[before : after + 1], here)
        new = _corners(frames[after], here)
        numbers = np.concatenate([numbers[kept], total + np.arange(len(new))])
        here, total = np.concatenate([here, new]), total + len(new)
        seen.append((numbers, here))
    points = np.full((len(keys), total, 2), np.nan)
    for row, (numbers, places) in zip(points, seen, strict=True):
        row[numbers] = places + 0.5
    return Tracks(keys, points, frames[0].shape[::-1])


def _corners(picture: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Corners float32 [n, 2], away from points that are `taken`."""
    cv2 = opencv()
    free = np.full(picture.shape, 255, np.uint8)
    for column, row in taken.astype(int):
        cv2.circle(free, (int(column), int(row)), APART, 0, -1)
    most = MOST_POINTS - len(taken)
    found = cv2.goodFeaturesToTrack(picture, most, 0.005, APART, mask=free, blockSize=5) if most > 0 else None
    return np.empty((0, 2), np.float32) if found is None else found.reshape(-1, 2)


def _between(frames: Sequence[np.ndarray], began: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points float32 [n, 2] of the first frame in the last one, those that were found, and which these are [n]."""
    cv2 = opencv()
    if not len(began):
        return began, np.zeros(0, bool)
    ended = began
    for before, after in zip(frames[:-1], frames[1:], strict=True):
        ended, _, _ = cv2.calcOpticalFlowPyrLK(before, after, ended, None, **LOOK)
    guided = {**LOOK, "flags": cv2.OPTFLOW_USE_INITIAL_FLOW}
    ended, there, _ = cv2.calcOpticalFlowPyrLK(frames[0], frames[-1], began, ended.copy(), **guided)
    back, here, _ = cv2.calcOpticalFlowPyrLK(frames[-1], frames[0], ended, began.copy(), **guided)
    found = (there & here).reshape(-1) == 1
    inside = np.all((ended >= 0) & (ended <= np.array(frames[0].shape[::-1]) - 1), axis=1)
    kept = found & inside & (np.linalg.norm(back - began, axis=1) < FARTHEST_BACK)
    return ended[kept], kept
