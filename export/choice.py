"""Selection of the frames to export. First the sharpest frame of each group of successive frames is selected. Then the
blurred ones among these frames are dropped."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

BLURRED = 0.6
"""The threshold for blur. A frame is blurred if its sharpness is less than this fraction of the median sharpness of its
neighbours. The package `measure` has a separate threshold with the same value."""
NEIGHBOURS = 4
"""The number of neighbours on each side of a frame with which `blurred` compares the frame's sharpness."""


def sharpness(pixels: np.ndarray) -> float:
    """Return the sharpness of a frame, uint8 [H, W, 3]: a number without a unit, higher for sharper frames. It is
    var(Laplacian) / (var(grey) + 1), computed from the grey values, so a uniform frame has 0."""
    grey = pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    around = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    return float((around - 4 * grey[1:-1, 1:-1]).var() / (grey.var() + 1))


def sharpest(frames: Iterable[np.ndarray], every: int) -> Iterator[tuple[int, np.ndarray, float]]:
    """Yield (index, pixels, sharpness) of the sharpest frame in each group of `every` successive frames. The last group
    may be smaller. `frames`: uint8 [H, W, 3] each. The index counts `frames` from 0."""
    best: tuple[int, np.ndarray, float] | None = None
    for number, pixels in enumerate(frames):
        found = number, pixels, sharpness(pixels)
        best = found if best is None or found[2] > best[2] else best
        if number % every == every - 1:
            yield best
            best = None
    if best is not None:
        yield best


def blurred(values: Sequence[float]) -> list[int]:
    """Return the indices of the blurred frames. `values`: the sharpness of each frame. A frame is blurred if its value
    is below BLURRED times the median of up to NEIGHBOURS values before it and as many after it. A single frame is never
    blurred."""
    around = [
        [*values[max(0, at - NEIGHBOURS) : at], *values[at + 1 : at + 1 + NEIGHBOURS]] for at in range(len(values))
    ]
    return [at for at, value in enumerate(values) if around[at] and value < BLURRED * np.median(around[at])]
