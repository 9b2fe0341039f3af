"""The frames of a chunk, from where the model has made it to where they are delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..camera import RecordedCamera, WalkingCamera
from ..controls import Wishes


@dataclass(frozen=True)
class Frames:
    """Frames `pixels` uint8 [n, H, W, 3] for delivery: `part` 0 of a chunk's `parts` belongs to its first latent frame,
    part 1 to the others. `first`: the number in the walk of the first of them. `event`: the last input that the chunk
    includes. `seconds`: the time since the inputs were taken. `poses`: c2w float64 [n, 4, 4] of these frames, None if
    unknown. `waited`: seconds from the arrival of the last input until it was taken, None if an earlier chunk already
    included it."""

    pixels: np.ndarray
    chunk: int
    first: int
    part: int
    parts: int
    event: int | None
    seconds: float
    poses: np.ndarray | None = None
    waited: float | None = None

    @property
    def last(self) -> bool:
        """Return whether these are the last frames of the chunk."""
        return self.part == self.parts - 1


Part = tuple[Tensor, Callable[[], object]]
"""Frames, which are valid after the function has returned."""


class Made(NamedTuple):
    """A chunk that was made, before delivery. `latent`, and its `copy` in host memory, which is valid after `wait()` or
    once the frames are. `steps` and `poses` of the camera. `number` of the chunk, its inputs `wishes`, and the time
    `began` when they were taken."""

    latent: Tensor
    copy: Tensor
    wait: Callable[[], object]
    steps: np.ndarray
    poses: np.ndarray
    number: int
    wishes: Wishes
    began: float


class KeyChangedError(Exception):
    """An error that drops a chunk, because a key has changed since it began. `camera`: the camera before the chunk."""

    def __init__(self, camera: WalkingCamera | RecordedCamera) -> None:
        self.camera = camera
