"""The data of a chunk on its way from the model to the viewer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..camera import RecordedCamera, WalkingCamera
from ..controls import FRAMES_PER_LATENT, FrameInputs, Input


class Receipt(NamedTuple):
    """A report that an input has taken effect.

    kind: as in `Input`.
    event: the id that came with the input, or None.
    arrived: the time of arrival by time.monotonic.
    waited: the seconds from the arrival until the chunk began.
    latent_frame: the index of the first latent frame with the input.
    """

    kind: str
    event: int | None
    arrived: float
    waited: float
    latent_frame: int


@dataclass(frozen=True)
class Frames:
    """The decoded frames of one part of a chunk: of its first latent frame, or of its other latent frames.

    pixels: uint8 [n, H, W, 3].
    chunk: the index of the chunk in the walk.
    first: the first frame's index, counted from the start of a continued video.
    part: 0 for the chunk's first latent frame, 1 for the others.
    event: the id of the last input that carried an id, or None.
    seconds: the time from the chunk's start until the frames were decoded.
    poses: camera-to-world, float64 [n, 4, 4], or None if unknown.
    waited: the time from the newest input's arrival to the chunk's start; None without a new input.
    inputs: a Receipt for each input that took effect in these frames.
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
        return self.part == self.parts - 1


Part = tuple[Tensor, Callable[[], object]]
"""A pair (frames, wait). `frames` is uint8 [n, H, W, 3]. Its values are valid once `wait()` has been called."""


class LatentChunk(NamedTuple):
    """A chunk before its decoding.

    latent: [1, 16, n, h, w], on the model's device.
    copy: `latent` in host memory, valid after `wait()`.
    wait: waits for the asynchronous copy.
    relative_poses: [n, 4, 4], model input, each relative to its predecessor.
    poses: the camera poses [m, 4, 4] of the video frames.
    began: when the inputs were read, by time.perf_counter.
    receipts: one for each input that takes effect in the chunk.
    """

    latent: Tensor
    copy: Tensor
    wait: Callable[[], object]
    relative_poses: np.ndarray
    poses: np.ndarray
    number: int
    inputs: FrameInputs
    began: float
    receipts: tuple[Receipt, ...]


CHUNK_START_KINDS = "prompt", "event", "time", "back"
"""The kinds of inputs that take effect with the first latent frame of a chunk."""


def make_receipts(inputs: Iterable[Input], began: float, first: int, begins_video: bool) -> tuple[Receipt, ...]:
    """Return the Receipts of a chunk's inputs, sorted by arrival.

    began: when the chunk began, by time.monotonic, the clock of the inputs' arrival.
    first: the index of the chunk's first latent frame.
    begins_video: whether this latent frame is the start image, which shows no movement of the camera.
    """

    def latent_frame(each: Input) -> int:  # the start image shows a prompt, but no movement of the camera
        return first if each.kind in CHUNK_START_KINDS else first + begins_video + each.row // FRAMES_PER_LATENT

    return tuple(
        Receipt(each.kind, each.number, each.arrived, began - each.arrived, latent_frame(each))
        for each in sorted(inputs, key=lambda each: each.arrived)
    )


class KeyChangedError(Exception):
    """An exception that interrupts a chunk because keys or sticks have changed. `camera` is the camera before the
    chunk."""

    def __init__(self, camera: WalkingCamera | RecordedCamera) -> None:
        self.camera = camera
