"""Points of a picture followed to a later one, by OpenCV."""

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from ...errors import require

SMALLEST_SIDE = 240
"""Pixels of the shorter side from which on pictures are tracked as they are; smaller ones are enlarged before."""
MOST_POINTS = 400
WINDOW, LEVELS = 15, 4
MOST_ZOOM, LEAST_ALIKE = 2.0, 0.25
"""The last picture is brought onto the first if it grew or shrank by less than that many times, as that share of the
points says."""
FARTHEST_BACK = 0.5
"""Pixels by which a point that was followed there and back may miss where it began."""


def opencv() -> ModuleType:
    """OpenCV's module. Raises DependencyError, with the command that installs it, where it is missing."""
    return require("cv2", "opencv-python-headless")


def follow(frames: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where points of the first of `frames` (uint8 [H, W]) are in it and in the last: x and y, two float64 [n, 2].

    Pixel centres lie at .5, as in the intrinsics. Points are followed from frame to frame, then once more from the
    first frame to the last, and back: those that do not come back to where they began are left out. For that the last
    frame is turned and zoomed onto the first: a window around a point that grows is followed to beside the point.
    """
    scale = max(1.0, SMALLEST_SIDE / min(frames[0].shape))
    pictures = [_enlarged(frame, scale) for frame in frames]
    began = _corners(pictures[0])
    if not len(began):
        return np.empty((0, 2)), np.empty((0, 2))
    ended = began
    for before, after in zip(pictures[:-1], pictures[1:], strict=True):
        ended, _ = _moved(before, after, ended)
    onto = _likeness(began, ended)
    last_as_first = _brought_back(pictures[-1], onto)
    seen, there = _moved(pictures[0], last_as_first, began, _placed(ended, opencv().invertAffineTransform(onto)))
    back, here = _moved(last_as_first, pictures[0], seen, began)
    ended = _placed(seen, onto)
    good = there & here & (np.linalg.norm(back - began, axis=1) < FARTHEST_BACK) & _inside(ended, pictures[-1])
    first, last = ((points[good].astype(np.float64) + 0.5) / scale for points in (began, ended))
    return first, last


def _enlarged(frame: np.ndarray, scale: float) -> np.ndarray:
    cv2 = opencv()
    return frame if scale == 1 else cv2.resize(frame, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)


def _corners(picture: np.ndarray) -> np.ndarray:
    """Corners float32 [n, 2], spread over the picture."""
    distance = max(4.0, min(picture.shape) / 45)
    found = opencv().goodFeaturesToTrack(picture, MOST_POINTS, 0.003, distance, blockSize=7)
    return np.empty((0, 2), np.float32) if found is None else found.reshape(-1, 2)


def _moved(
    before: np.ndarray, after: np.ndarray, points: np.ndarray, guess: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Where points float32 [n, 2] of one picture are in another, near `guess`, and whether each was found, bool [n]."""
    cv2 = opencv()
    start, flags = (None, 0) if guess is None else (guess.copy(), cv2.OPTFLOW_USE_INITIAL_FLOW)
    options = {"winSize": (WINDOW, WINDOW), "maxLevel": LEVELS, "flags": flags}
    moved, found, _ = cv2.calcOpticalFlowPyrLK(before, after, points, start, **options)
    return moved, found.reshape(-1) == 1


def _likeness(began: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """The turn, zoom and shift [2, 3] in the picture that most points agree with; no change where too few do."""
    matrix, agreeing = opencv().estimateAffinePartial2D(began, ended, ransacReprojThreshold=3.0)
    if matrix is None or np.mean(agreeing) < LEAST_ALIKE:
        return np.eye(2, 3)
    return matrix if 1 / MOST_ZOOM < np.hypot(*matrix[:, 0]) < MOST_ZOOM else np.eye(2, 3)


def _brought_back(picture: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """The picture, of the same size, as it would be without the change `onto` [2, 3]."""
    cv2 = opencv()
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(picture, onto, picture.shape[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE)


def _placed(points: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Points float32 [n, 2] after the change [2, 3]."""
    return (points @ matrix[:, :2].T + matrix[:, 2]).astype(np.float32)


def _inside(points: np.ndarray, picture: np.ndarray) -> np.ndarray:
    height, width = picture.shape
    return np.all((points >= 0) & (points <= [width - 1, height - 1]), axis=1)
