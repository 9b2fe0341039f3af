"""What the figures of a video say: what falls off, from when on, and what happens again and again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .figures import Figures

BLURRED, PALE, TINTED, DARKER = 0.6, 0.4, 30.0, 50.0
"""A video loses itself where, until its end, it keeps less than that share of the first second's sharpness, of its
colourfulness, or is that many of 255 off in red against blue, in brightness. A camera that turns changes all of these:
in clean known clips the least were 0.69 and 0.49, the most 24 and 43."""
STILL = 0.02
"""A frame stands still if it differs from the one before by less than that share of the usual difference."""
FROZEN_S = 0.4
FLICKER = 1.5
"""Of 255: the brightness goes up and down by more than that from frame to frame."""
SEAM = 1.8
"""At a seam a frame differs from the one before so many times as much as its neighbours do."""
CHUNKS = (3, 4, 6, 8, 9, 12, 15, 16, 20, 24)
"""Frames of a chunk that seams are looked for in."""
ALIKE, APART_S = 2.0, 1.0
"""A stretch repeats if it differs from one so many seconds before by less than that, of 255, while pictures move."""


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
    second = max(round(figures.fps), 2)
    sharpness, colours = (float(np.median(values[:second])) for values in (figures.sharpness, figures.colourfulness))
    tint, light = (np.abs(values - np.median(values[:second])) for values in (figures.hue, figures.brightness))
    found = []
    for name, off, words in (
        ("sharpness", figures.sharpness < BLURRED * sharpness, f"less than {BLURRED:.0%} as sharp as at first"),
        ("colour", figures.colourfulness < PALE * colours, f"less than {PALE:.0%} as colourful as at first"),
        ("tint", tint > TINTED, f"tinted: red against blue is more than {TINTED:.0f} of 255 off"),
        ("brightness", light > DARKER, f"brighter or darker than at first by more than {DARKER:.0f} of 255"),
    ):
        begins = _to_the_end(off, figures.fps)
        if begins is not None:
            found.append(Fault(name, begins, f"From second {begins:.1f} on it is {words}."))
    return found


def _to_the_end(off: np.ndarray, fps: float) -> float | None:
    """The second from which on nearly all frames are off, half a second of them at least; None if the end is not."""
    shares = np.cumsum(off[::-1])[::-1] / np.arange(len(off), 0, -1)
    starts = np.flatnonzero((shares > 0.9) & off)
    return float(starts[0] / fps) if len(starts) and len(off) - starts[0] >= 0.5 * fps else None


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
        if seconds >= FROZEN_S:
            found.append(Fault("frozen", begins, f"From second {begins:.1f} on it stands still for {seconds:.1f} s."))
    return found


def _flickers(figures: Figures) -> list[Fault]:
    bends = np.abs(np.diff(figures.brightness, 2)) / 2
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
    """Frames, at even distances, that differ more from the one before than their neighbours do."""
    change = figures.change
    if len(change) < 8:
        return []
    near = [np.delete(change[max(1, at - 3) : at + 4], min(3, at - 1)) for at in range(1, len(change))]
    jump = np.concatenate([[0.0], change[1:] / (np.array([np.median(values) for values in near]) + 0.3)])
    for chunk in CHUNKS[::-1]:
        for first in range(1, chunk + 1):
            at = np.arange(first, len(jump), chunk)
            if len(at) >= 3 and np.mean(jump[at] > SEAM) > 0.8 and np.median(np.delete(jump, at)) < SEAM / 1.3:
                begins = float(at[np.argmax(jump[at] > SEAM)]) / figures.fps
                words = f"From second {begins:.1f} on there is a seam every {chunk} frames."
                return [Fault("seams", begins, words)]
    return []


def _repeats(figures: Figures) -> list[Fault]:
    """A stretch of half a second that was there before, picture for picture, while the pictures change."""
    small = figures.thumbnails.reshape(len(figures), -1)
    run, apart = max(round(figures.fps / 2), 2), max(round(figures.fps * APART_S), 2)
    for shift in range(apart, len(small) - run):
        near = np.abs(small[shift:] - small[:-shift]).mean(1) < ALIKE / 2
        runs = np.convolve(near, np.ones(run), "valid") == run
        for start in np.flatnonzero(runs):
            here = slice(start + shift, start + shift + run)
            if np.abs(small[here] - small[here.start]).mean() > ALIKE:
                begins = float(here.start) / figures.fps
                words = f"From second {begins:.1f} on it repeats second {start / figures.fps:.1f}."
                return [Fault("repeat", begins, words)]
    return []
