"""The data of a chunk on its way from the model to the viewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..camera import RecordedCamera, WalkingCamera
from ..controls import FRAMES_OF_ONE, Input, Wishes


class Receipt(NamedTuple):
    """A report that an input has taken effect.

    kind: hold (keys), look, stick, script, prompt, event, back, or time (an event that began or ended by its time).
    event: the number that the sender gave the input, or None.
    arrived: the time of its arrival (time.monotonic).
    waited: the seconds from its arrival until its chunk began.
    latent_frame: the walk's first latent frame that includes it.
    """

    kind: str
    event: int | None
    arrived: float
    waited: float
    latent_frame: int


@dataclass(frozen=True)
class Frames:
    """Some frames of a chunk. A chunk has `parts` parts (one or two).

    pixels: uint8 [n, H, W, 3].
    chunk: the number of the chunk in the walk.
    first: the number of the first of these frames in the walk.
    part: 0 for the frames of the chunk's first latent frame, 1 for the others.
    event: the number of the last input that the chunk includes, or None.
    seconds: the time since the inputs of the chunk were read.
    poses: camera-to-world, float64 [n, 4, 4], or None if unknown.
    waited: the seconds from the arrival of input `event` until it was read; None if an earlier chunk included it.
    inputs: the inputs that took effect in these frames, in order of arrival.
    """

    pixels: np.ndarray
    chunk: int
    first: int
    part: int
    parts: int
    event: int | None
    seconds: float
    poses: np.ndarray | None = None
    waited: float | None = None
    inputs: tuple[Receipt, ...] = ()

    @property
    def last(self) -> bool:
        """Whether these are the last frames of their chunk."""
        return self.part == self.parts - 1


Part = tuple[Tensor, Callable[[], object]]
"""A pair: frames, and a function that waits until they have been computed."""


class Made(NamedTuple):
    """A chunk before its delivery.

    latent: [1, 16, n, h, w].
    copy: the latent in host memory, valid after `wait()`.
    steps: the model's camera input [n, 4, 4].
    poses: the poses [m, 4, 4] of the video frames.
    number: the number of the chunk in the walk.
    wishes: the inputs.
    began: the time at which the inputs were read (time.perf_counter).
    receipts: the reports about the inputs.
    """

    latent: Tensor
    copy: Tensor
    wait: Callable[[], object]
    steps: np.ndarray
    poses: np.ndarray
    number: int
    wishes: Wishes
    began: float
    receipts: tuple[Receipt, ...]


def receipts_of(inputs: Iterable[Input], now: float, chunk: int, size: int, frames: int) -> tuple[Receipt, ...]:
    """Return a Receipt for each of `inputs`, in order of arrival.

    now: the time at which the chunk began (time.monotonic).
    chunk: the number of the chunk.
    size: its latent frames.
    frames: its video frames.
    """
    before = chunk * size * FRAMES_OF_ONE + size * FRAMES_OF_ONE - frames
    return tuple(
        Receipt(each.kind, each.event, each.arrived, now - each.arrived, (before + each.row) // FRAMES_OF_ONE)
        for each in sorted(inputs, key=lambda each: each.arrived)
    )


class KeyChangedError(Exception):
    """An error that stops the making of a chunk because a key has changed. `camera` is the camera before the chunk."""

    def __init__(self, camera: WalkingCamera | RecordedCamera) -> None:
        self.camera = camera
