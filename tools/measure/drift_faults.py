"""Faults put into a clip of 81 frames, uint8 [81, H, W, 3], as `lingbot-world measure` should name them."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

Frames = np.ndarray


def blurred(frames: Frames) -> Frames:
    return np.stack([cv2.GaussianBlur(each, (0, 0), 0.05 + max(0, at - 32) * 0.08) for at, each in enumerate(frames)])


def tinted(frames: Frames) -> Frames:
    grown = np.clip(np.arange(len(frames)) - 40, 0, 20)[:, None, None, None] * [1, 0, -1]
    return np.clip(frames + grown, 0, 255).astype(np.uint8)


def frozen(frames: Frames) -> Frames:
    return np.concatenate([frames[:31], np.repeat(frames[30:31], 16, 0), frames[47:]])


def with_seams(frames: Frames) -> Frames:
    return np.concatenate([np.roll(frames[at : at + 12], 5 * (at // 12), axis=2) for at in range(0, len(frames), 12)])


def flickering(frames: Frames) -> Frames:
    lit = (np.arange(len(frames)) % 2 * (np.arange(len(frames)) > 40) * 6)[:, None, None, None]
    return np.clip(frames + lit, 0, 255).astype(np.uint8)


def repeating(frames: Frames) -> Frames:
    return np.concatenate([frames[:40], frames[10:51]])


FAULTS: dict[str, tuple[Callable[[Frames], Frames], float, float]] = {
    "sharpness": (blurred, 2.0, 0.5),
    "tint": (tinted, 2.5, 0.2),
    "frozen": (frozen, 1.9, 0.2),
    "seams": (with_seams, 0.7, 0.2),
    "flicker": (flickering, 2.2, 0.4),
    "repeat": (repeating, 2.5, 0.2),
}
"""Faults by name: the function that adds one, the second at which it begins, and the limit in seconds of its
detection."""
