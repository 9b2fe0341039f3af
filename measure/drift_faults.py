"""What the figures of a video say: what falls off, from when on, and what happens again and again."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .drift_figures import STRIDE, Figures

BLURRED, PALE, TINTED, DARKER = 0.6, 0.7, 12.0, 15.0
"""A video loses itself where, until its end, it keeps less than that share of the first second's sharpness, of its
colourfulness, or is that many of 255 off in red against blue, in brightness. Both in the picture as a whole, which a
camera that turns changes too, and in the places that it shows, wherever they move."""
BLURRED_PLACES = 0.35
"""Of the sharpness: places that come near lose some of it where a picture has more detail than pixels."""
SURE_S = 5.0
"""The sum over places errs the more, the longer it is. It is enough by itself where it passes its bound as many times
more as this goes into the video."""
STILL = 0.02
"""A frame stands still if it differs from the one before by less than that share of the usual difference."""
FROZEN_S = 0.4
FLICKER = 1.0
"""Of 255: the brightness of places goes up and down by more than that from frame to frame."""
JERK, UNLIKE = 2.0, 1.8
"""At a seam the picture moves by so many pixels more than around it, or what its motion leaves unlike is so many times
as much."""
CHUNKS = (3, 4, 6, 8, 9, 12, 15, 16, 20, 24)
"""Frames of a chunk that seams are looked for in."""
SAME, MOVES, APART_S = 0.25, 0.1, 1.0
"""A stretch repeats one so many seconds before if it differs from it by less than that share of what a frame differs
from the one before, which is at least so much of 255."""


class Fault(NamedTuple):
    """A fault's `name`, the second at which it `begins` and a sentence."""

    name: str
    begins_s: float
    words: str


def find_faults(figures: Figures) -> list[Fault]:
    """The faults of a video in the order in which they begin; none in one that stays as it is."""
    found = [*_drifts(figures), *_frozen(figures), *_flickers(figures), *_seams(figures), *_repeats(figures)]
    return sorted(found, key=lambda fault: fault.begins_s)


def _drifts(figures: Figures) -> list[Fault]:
    found = []
    for name, course, whole, bound, words in _courses(figures):
        beyond, seconds = np.abs(course) / bound, np.arange(len(course)) / figures.fps
        off = (beyond > 1 + seconds / SURE_S) | ((beyond > 1) & whole)
        shares = np.cumsum(off[::-1])[::-1] / np.arange(len(off), 0, -1)  # of the frames from each one on
        starts = np.flatnonzero((shares > 0.9) & off)
        if len(starts) and len(off) - starts[0] >= 0.5 * figures.fps:
            passed = int(starts[0])
            begins, at = _begin(course, passed) / figures.fps, seconds[passed]
            found.append(
                Fault(
                    name,
                    begins,
                    f"From second {begins:.1f} on it drifts; from second {at:.1f} on it is {words} at first.",
                )
            )
    return found


def _courses(figures: Figures) -> Iterator[tuple[str, np.ndarray, np.ndarray, float, str]]:
    """Of each drift its name, how far places have gone, whether the whole picture has, the bound, and words."""
    second = max(round(figures.fps), 2)

    def since(values: np.ndarray) -> np.ndarray:
        return values - np.median(values[:second])

    def share(values: np.ndarray) -> np.ndarray:
        return values / max(float(np.median(values[:second])), 1e-9)

    yield (
        "sharpness",
        np.minimum(since(figures.sharper), 0),
        share(figures.sharpness) < BLURRED,
        -np.log(BLURRED_PLACES),
        f"less than {BLURRED:.0%} as sharp as",
    )
    yield (
        "colour",
        np.minimum(since(figures.livelier), 0),
        share(figures.colourfulness) < PALE,
        -np.log(PALE),
        f"less than {PALE:.0%} as colourful as",
    )
    yield (
        "tint",
        since(figures.redder),
        np.abs(since(figures.hue)) > TINTED,
        TINTED,
        f"tinted, with red against blue more than {TINTED:.0f} of 255 from what it was",
    )
    yield (
        "brightness",
        since(figures.lighter),
        np.abs(since(figures.brightness)) > DARKER,
        DARKER,
        f"brighter or darker by more than {DARKER:.0f} of 255 than",
    )


def _begin(course: np.ndarray, passed: int) -> int:
    """The frame from which on a course goes, without a rest, where it has passed a bound: steps of a quarter of the
    steepest before that count."""
    way = -np.sign(course[passed])
    steps = -way * np.diff(course[: passed + 1])
    rests = np.flatnonzero(steps < steps[-STRIDE * 2 :].max() / 4)
    return int(rests[-1]) + 1 if len(rests) else 0


def _frozen(figures: Figures) -> list[Fault]:
    moving = figures.change[1:]
    usual = float(np.quantile(moving, 0.75))
    if usual < 0.1:  # all of it stands still
        return []
    still = np.concatenate([[False], moving < STILL * usual, [False]])
    edges = np.flatnonzero(np.diff(still.astype(int)))
    found = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        seconds, begins = float(end - start) / figures.fps, float(start + 1) / figures.fps
        if start and seconds >= FROZEN_S:  # one that begins still has not been stopped
            found.append(Fault("frozen", begins, f"From second {begins:.1f} on it stands still for {seconds:.1f} s."))
    return found


def _flickers(figures: Figures) -> list[Fault]:
    bends = np.abs(np.diff(figures.lighter, 2)) / 2
    window = max(round(figures.fps / 2), 2)
    if len(bends) < window:
        return []
    typical = np.array([np.median(bends[at : at + window]) for at in range(len(bends) - window + 1)])
    over = np.flatnonzero(typical > FLICKER)
    if not len(over):
        return []
    begins = float(over[0] + window // 2) / figures.fps
    words = f"From second {begins:.1f} on the brightness flickers by {typical.max():.1f} of 255."
    return [Fault("flicker", begins, words)]


def _seams(figures: Figures) -> list[Fault]:
    """Frames, at even distances, at which the picture goes on otherwise than around them."""
    if len(figures) < 8:
        return []
    around = [
        np.delete(np.arange(max(1, at - 3), min(at + 4, len(figures))), min(3, at - 1)) for at in range(1, len(figures))
    ]
    motion, unlike = figures.motion[1:], figures.unlike[1:]
    jerk = np.hypot(*(motion - [np.median(figures.motion[near], axis=0) for near in around]).T)
    more = unlike / (np.array([np.median(figures.unlike[near]) for near in around]) + 0.3)
    jump = np.concatenate([[0.0], np.maximum(jerk / JERK, more / UNLIKE)])
    for chunk in CHUNKS[::-1]:
        for first in range(1, chunk + 1):
            at = np.arange(first, len(jump), chunk)
            others = np.delete(jump, at)
            if len(at) >= 3 and np.mean(jump[at] > 1) > 0.8 and np.quantile(others, 0.9) < 0.7:
                begins = float(at[np.argmax(jump[at] > 1)]) / figures.fps
                words = f"From second {begins:.1f} on there is a seam every {chunk} frames."
                return [Fault("seams", begins, words)]
    return []


def _repeats(figures: Figures) -> list[Fault]:
    """A stretch of half a second that was there before, picture for picture, while the pictures change."""
    small = figures.thumbnails.reshape(len(figures), -1)
    small = small - small.mean(1, keepdims=True)  # a flicker is no motion
    run, apart = max(round(figures.fps / 2), 2), max(round(figures.fps * APART_S), 2)
    steps = np.abs(np.diff(small, axis=0, prepend=small[:1])).mean(1)
    moving = np.array([np.median(steps[max(0, at - run) : at + run]) for at in range(len(small))])
    for shift in range(apart, len(small) - run):
        same = np.abs(small[shift:] - small[:-shift]).mean(1) < SAME * moving[shift:]
        same &= moving[shift:] > MOVES
        starts = np.flatnonzero(np.convolve(same, np.ones(run), "valid") == run)
        if len(starts):
            begins, before = float(starts[0] + shift) / figures.fps, starts[0] / figures.fps
            return [Fault("repeat", begins, f"From second {begins:.1f} on it repeats second {before:.1f}.")]
    return []
