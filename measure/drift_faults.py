"""Detection of drift, freezes, flicker, seams between chunks and repeats from frame metrics."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .drift_metrics import STRIDE, FrameMetrics

MIN_SHARPNESS, MIN_COLOUR, MAX_TINT, MAX_BRIGHTNESS = 0.6, 0.7, 12.0, 15.0
"""The limits of drift. Sharpness and colourfulness: the minimum fraction of the first second's value. Tint and
brightness: the maximum change in grey levels (0 to 255)."""
MIN_TRACKED_SHARPNESS = 0.35
"""The minimum sharpness of scene content tracked by optical flow, as a fraction of its sharpness in the first second.
Content loses detail as the camera comes closer, so this limit is lower than the whole image's."""
GROWTH_S, MAX_GROWTH = 5.0, 2.0
"""The widening of drift limits over time, for scene content tracked by optical flow, by the factor g = 1 + seconds /
GROWTH_S. Limits of differences (tint, brightness) are multiplied by min(g, MAX_GROWTH). Limits of ratios (sharpness,
colourfulness) are below 1 and become limit ** g."""
STILL = 0.02
"""A frame is frozen if its change is below this fraction of the third quartile of all frames' changes."""
FROZEN_S = 0.4
FLICKER = 1.0
"""The maximum flicker without a fault, in grey levels (0 to 255). A frame's flicker is the distance of its brightness
from its neighbours' mean. The limit holds for the median over half a second."""
MOTION_JUMP, RESIDUAL_RATIO = 2.0, 1.8
"""A frame that exceeds either of these limits counts as a jump. Jumps at regular intervals are seams between chunks.

MOTION_JUMP: the limit for the deviation from the neighbouring frames' median motion, in pixels.
RESIDUAL_RATIO: the limit for the residual after motion compensation, divided by the neighbouring frames' median
residual.
"""
CHUNKS = (3, 4, 6, 8, 9, 12, 15, 16, 20, 24)
"""The lengths of a chunk, in video frames, that the search for seams tries."""
REPEAT_RATIO, REPEAT_CHANGE, REPEAT_GAP_S = 0.25, 0.1, 1.0
"""The conditions under which a frame repeats an earlier frame.

REPEAT_RATIO: the maximum difference of the two frames, divided by the median frame-to-frame change nearby.
REPEAT_CHANGE: the minimum of this median change, in grey levels.
REPEAT_GAP_S: the minimum time between the two frames, in seconds.
"""


class Fault(NamedTuple):
    """A fault of a video.

    name: the kind of fault, such as "sharpness" or "frozen".
    begins_s: the second at which the fault begins.
    words: a message for the user.
    """

    name: str
    begins_s: float
    words: str


def find_faults(metrics: FrameMetrics) -> list[Fault]:
    """Return the faults of a video, the earliest first."""
    found = [*_drifts(metrics), *_frozen(metrics), *_flickers(metrics), *_seams(metrics), *_repeats(metrics)]
    return sorted(found, key=lambda fault: fault.begins_s)


def _drifts(metrics: FrameMetrics) -> list[Fault]:
    found = []
    for name, curve, off, words in _drift_curves(metrics):
        shares = np.cumsum(off[::-1])[::-1] / np.arange(len(off), 0, -1)  # the fraction of all later frames
        starts = np.flatnonzero((shares > 0.9) & off)
        if len(starts) and len(off) - starts[0] >= 0.5 * metrics.fps:
            passed = int(starts[0])
            begins, at = _start_of_change(curve, passed) / metrics.fps, passed / metrics.fps
            change = words[int(curve[passed] > 0)]
            message = f"From second {begins:.1f} on it drifts; from second {at:.1f} on it is {change} at first."
            found.append(Fault(name, begins, message))
    return found


def _drift_curves(metrics: FrameMetrics) -> Iterator[tuple[str, np.ndarray, np.ndarray, tuple[str, str]]]:
    """Yield for each metric: its name, its change [f] divided by the metric's limit, a mask [f] of drifted frames, and
    the words for a fall and for a rise."""
    second, grown = max(round(metrics.fps), 2), 1 + np.arange(len(metrics)) / metrics.fps / GROWTH_S

    def since(values: np.ndarray) -> np.ndarray:
        return values - np.median(values[:second])

    # off: tracked content exceeds the grown threshold, or content and full image both exceed the plain one
    for name, measure, word, least, least_places in (
        ("sharpness", "sharpness", "sharp", MIN_SHARPNESS, MIN_TRACKED_SHARPNESS),
        ("colour", "colourfulness", "colourful", MIN_COLOUR, MIN_COLOUR),
    ):
        change = since(getattr(metrics, f"{measure}_change")) / -np.log(least_places)
        whole = since(np.log(np.maximum(getattr(metrics, measure), 1e-9))) / -np.log(least)
        off = (change < -grown) | ((np.abs(change) > 1) & (np.sign(change) * whole > 1))
        yield name, change, off, (f"less than {least:.0%} as {word} as", f"more than {1 / least:.0%} as {word} as")
    for name, most, words in (
        ("tint", MAX_TINT, f"tinted, with red minus blue more than {MAX_TINT:.0f} of 255 away from its value"),
        ("brightness", MAX_BRIGHTNESS, f"brighter or darker by more than {MAX_BRIGHTNESS:.0f} of 255 than"),
    ):
        change, whole = since(getattr(metrics, f"{name}_change")) / most, since(getattr(metrics, name)) / most
        off = (np.abs(change) > np.minimum(grown, MAX_GROWTH)) | ((np.abs(change) > 1) & (np.abs(whole) > 1))
        yield name, change, off, (words, words)


def _start_of_change(curve: np.ndarray, end: int) -> int:
    """Return the frame at which the change of `curve` towards curve[end] began: the end of its last pause, or 0 without
    a pause. A pause is a step smaller than a quarter of the largest among the last 2*STRIDE steps."""
    steps = np.sign(curve[end]) * np.diff(curve[: end + 1])
    rests = np.flatnonzero(steps < steps[-STRIDE * 2 :].max(initial=0) / 4)
    return int(rests[-1]) + 1 if len(rests) else 0


def _frozen(metrics: FrameMetrics) -> list[Fault]:
    moving = metrics.change[1:]
    usual = float(np.quantile(moving, 0.75))
    if usual < 0.1:  # the full video is still
        return []
    still = np.concatenate([[False], moving < STILL * usual, [False]])
    edges = np.flatnonzero(np.diff(still.astype(int)))
    found = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        seconds, begins = float(end - start) / metrics.fps, float(start + 1) / metrics.fps
        if start and seconds >= FROZEN_S:  # a video that begins still is not frozen
            found.append(Fault("frozen", begins, f"From second {begins:.1f} on it stands still for {seconds:.1f} s."))
    return found


def _flickers(metrics: FrameMetrics) -> list[Fault]:
    bends = np.abs(np.diff(metrics.brightness_change, 2)) / 2
    window = max(round(metrics.fps / 2), 2)
    if len(bends) < window:
        return []
    typical = np.array([np.median(bends[at : at + window]) for at in range(len(bends) - window + 1)])
    over = np.flatnonzero(typical > FLICKER)
    if not len(over):
        return []
    begins = float(over[0] + window // 2) / metrics.fps
    words = f"From second {begins:.1f} on the brightness flickers by {typical.max():.1f} of 255."
    return [Fault("flicker", begins, words)]


def _seams(metrics: FrameMetrics) -> list[Fault]:
    if len(metrics) < 8:
        return []
    around = [
        np.delete(np.arange(max(1, at - 3), min(at + 4, len(metrics))), min(3, at - 1)) for at in range(1, len(metrics))
    ]
    motion, residual = metrics.motion[1:], metrics.residual[1:]
    jerk = np.hypot(*(motion - [np.median(metrics.motion[near], axis=0) for near in around]).T)
    more = residual / (np.array([np.median(metrics.residual[near]) for near in around]) + 0.3)
    jump = np.concatenate([[0.0], np.maximum(jerk / MOTION_JUMP, more / RESIDUAL_RATIO)])
    for chunk in CHUNKS[::-1]:
        for first in range(1, chunk + 1):
            at = np.arange(first, len(jump), chunk)
            others = np.delete(jump, at)
            if len(at) >= 3 and np.mean(jump[at] > 1) > 0.8 and np.quantile(others, 0.9) < 0.7:
                begins = float(at[np.argmax(jump[at] > 1)]) / metrics.fps
                words = f"From second {begins:.1f} on there is a seam every {chunk} frames."
                return [Fault("seams", begins, words)]
    return []


def _repeats(metrics: FrameMetrics) -> list[Fault]:
    small = metrics.thumbnails.reshape(len(metrics), -1)
    small = small - small.mean(1, keepdims=True)  # flicker does not count as motion
    run, apart = max(round(metrics.fps / 2), 2), max(round(metrics.fps * REPEAT_GAP_S), 2)
    steps = np.abs(np.diff(small, axis=0, prepend=small[:1])).mean(1)
    moving = np.array([np.median(steps[max(0, at - run) : at + run]) for at in range(len(small))])
    for shift in range(apart, len(small) - run):
        same = np.abs(small[shift:] - small[:-shift]).mean(1) < REPEAT_RATIO * moving[shift:]
        same &= moving[shift:] > REPEAT_CHANGE
        starts = np.flatnonzero(np.convolve(same, np.ones(run), "valid") == run)
        if len(starts):
            begins, before = float(starts[0] + shift) / metrics.fps, starts[0] / metrics.fps
            return [Fault("repeat", begins, f"From second {begins:.1f} on it repeats second {before:.1f}.")]
    return []
