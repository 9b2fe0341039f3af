"""The frames of a chunk, from where the model has made it to where they are delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..camera import RecordedCamera, WalkingCamera
from ..controls import FRAMES_OF_ONE, Heard, Wishes


class Receipt(NamedTuple):
    """An input that took effect. `kind`: hold (keys), look, stick, script, prompt, event, time (an event that its time
    began or ended) or back. `event`: the number that its sender gave, None without one. `arrived`: its time
    (time.monotonic). `waited`: seconds from then until its chunk began. `latent_frame`: the first latent frame of the
    walk that was made with the input."""

    kind: str
    event: int | None
    arrived: float
    waited: float
    latent_frame: int


@dataclass(frozen=True)
class Frames:
    """Frames `pixels` uint8 [n, H, W, 3] for delivery: `part` 0 of a chunk's `parts` belongs to its first latent frame,
    part 1 to the others. `first`: the number in the walk of the first of them. `event`: the last input that the chunk
    includes. `seconds`: the time since the inputs were taken. `poses`: c2w float64 [n, 4, 4] of these frames, None if
    unknown. `waited`: seconds from the arrival of the last input until it was taken, None if an earlier chunk already
    included it. `inputs`: the inputs that took effect in these frames, in order of arrival; each is named once."""

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
        """Return whether these are the last frames of the chunk."""
        return self.part == self.parts - 1


Part = tuple[Tensor, Callable[[], object]]
"""Frames, which are valid after the function has returned."""


class Made(NamedTuple):
    """A chunk that was made, before delivery. `latent`, and its `copy` in host memory, which is valid after `wait()` or
    once the frames are. `steps` and `poses` of the camera. `number` of the chunk, its inputs `wishes`, the time
    `began` when they were taken, and the `receipts`."""

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
    """Return the receipts of a chunk of `size` latent frames that adds video `frames` and began at `now`."""
    before = chunk * size * FRAMES_OF_ONE + size * FRAMES_OF_ONE - frames
    return tuple(
        Receipt(each.kind, each.event, each.arrived, now - each.arrived, (before + each.row) // FRAMES_OF_ONE)
        for each in sorted(heard, key=lambda each: each.arrived)
    )


class KeyChangedError(Exception):
    """An error that drops a chunk, because a key has changed since it began. `camera`: the camera before the chunk."""

    def __init__(self, camera: WalkingCamera | RecordedCamera) -> None:
        self.camera = camera
