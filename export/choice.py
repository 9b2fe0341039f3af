"""Selection of the frames to export: the sharpest frame of each group of successive frames, unless it is blurred."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

BLURRED = 0.6
"""A frame is blurred if its sharpness is below this fraction of its neighbours' median sharpness."""
NEIGHBOURS = 4
"""`find_blurred` compares a frame's sharpness with at most this many frames on each side."""


def sharpness(pixels: np.ndarray) -> float:
    """Return the sharpness of a frame, uint8 [H, W, 3]: var(Laplacian) / (var(grey) + 1)."""
    grey = pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    return float((around - 4 * grey[1:-1, 1:-1]).var() / (grey.var() + 1))


def pick_sharpest(frames: Iterable[np.ndarray], every: int) -> Iterator[tuple[int, np.ndarray, float]]:
    """Yield (index, pixels, sharpness) of the sharpest frame in each group of `every` successive frames. The pixels of
    all frames are uint8 [H, W, 3]."""
    best: tuple[int, np.ndarray, float] | None = None
    for number, pixels in enumerate(frames):
        found = number, pixels, sharpness(pixels)
        best = found if best is None or found[2] > best[2] else best
        if number % every == every - 1:
            yield best
            best = None
    if best is not None:
        yield best


def find_blurred(values: Sequence[float]) -> list[int]:
    """Return the indices of frames with a sharpness below BLURRED times the median of their neighbours' sharpness."""
    around = [
        [*values[max(0, at - NEIGHBOURS) : at], *values[at + 1 : at + 1 + NEIGHBOURS]] for at in range(len(values))
    ]
    return [at for at, value in enumerate(values) if around[at] and value < BLURRED * np.median(around[at])]
