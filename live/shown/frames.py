"""The data of a chunk between the model and the delivery of its frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..camera import RecordedCamera, WalkingCamera
from ..controls import FRAMES_OF_ONE, Heard, Wishes


class Receipt(NamedTuple):
    """An input that took effect. `kind`: hold (keys), look, stick, script, prompt, event, time (an event that began or
    ended by its time) or back. `event`: the number that its sender gave, or None. `arrived`: the time of its arrival
    (time.monotonic). `waited`: the seconds from then until its chunk began. `latent_frame`: the first latent frame of
    the walk that includes the input."""

    kind: str
    event: int | None
    arrived: float
    waited: float
    latent_frame: int


@dataclass(frozen=True)
class Frames:
    """Frames of a chunk, `pixels` uint8 [n, H, W, 3]. A chunk has `parts` parts: `part` 0 has the frames of its first
    latent frame, part 1 the others. `chunk` and `first`: the numbers in the walk of the chunk and of the first frame.
    `seconds`: the time since the chunk's inputs were taken. `poses`: c2w float64 [n, 4, 4], None if unknown. `event`:
    the number of the last input that the chunk includes. `waited`: the seconds from that input's arrival until it was
    taken, None if an earlier chunk included it. `inputs`: the inputs that took effect in these frames, in order of
    arrival; each is listed once."""

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
        """Whether these are the last frames of the chunk."""
        return self.part == self.parts - 1


Part = tuple[Tensor, Callable[[], object]]
"""Frames, and a function that waits until they are valid."""


class Made(NamedTuple):
    """A chunk before its delivery: the `latent` [1, 16, n, h, w], and its `copy` in host memory, which is valid after
    `wait()`; the model's camera input `steps` [n, 4, 4] and the `poses` of the video frames; the `number` of the chunk
    in the walk; its inputs `wishes`, the time `began` at which they were taken, and their `receipts`."""

    latent: Tensor
    copy: Tensor
    wait: Callable[[], object]
    steps: np.ndarray
    poses: np.ndarray
    number: int
    wishes: Wishes
    began: float
    receipts: tuple[Receipt, ...]


def receipts_of(heard: Iterable[Heard], now: float, chunk: int, size: int, frames: int) -> tuple[Receipt, ...]:
    """Return the receipts of the inputs `heard`, for chunk number `chunk` of `size` latent frames, which adds `frames`
    video frames and began at `now`."""
    before = chunk * size * FRAMES_OF_ONE + size * FRAMES_OF_ONE - frames
    return tuple(
        Receipt(each.kind, each.event, each.arrived, now - each.arrived, (before + each.row) // FRAMES_OF_ONE)
        for each in sorted(heard, key=lambda each: each.arrived)
    )


class KeyChangedError(Exception):
    """An error that ends a chunk because a key has changed since it began. `camera`: the camera before the chunk."""

    def __init__(self, camera: WalkingCamera | RecordedCamera) -> None:
        self.camera = camera
