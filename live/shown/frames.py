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

    kind: hold (keys), look (mouse), stick (gamepad), script (timed keys), prompt, or back (a return to an earlier
        chunk). For world events: event (the user switches one), or time (one begins or ends at its set time).
    event: the number that the sender gave to the input, or None.
    arrived: the time of its arrival in seconds (time.monotonic).
    waited: the seconds from its arrival until its chunk began.
    latent_frame: the index in the walk of the first latent frame that includes the input.
    """

    kind: str
    event: int | None
    arrived: float
    waited: float
    latent_frame: int


@dataclass(frozen=True)
class Frames:
    """The frames of one part of a chunk. A chunk has one part, or two if it has several latent frames.

    pixels: uint8 [n, H, W, 3].
    chunk: the index of the chunk in the walk.
    first: the index of the first of these frames in the video. The frames of a continued video are counted too.
    part: 0 for the frames of the chunk's first latent frame, 1 for those of the others.
    parts: the number of parts of the chunk.
    event: the sender's number for the last numbered input that the chunk includes, or None.
    seconds: the time from reading the chunk's inputs until these frames were decoded.
    poses: camera-to-world, float64 [n, 4, 4], or None if unknown.
    waited: the seconds from the arrival of the newest input until the chunk read it. None if no input arrived since the
        previous chunk.
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
        return self.part == self.parts - 1


Part = tuple[Tensor, Callable[[], object]]
"""A pair (frames, wait). `frames` is uint8 [n, H, W, 3]. Its values are valid once `wait()` has been called."""


class LatentChunk(NamedTuple):
    """A chunk before it is decoded and delivered.

    latent: [1, 16, n, h, w], on the model's device.
    copy: the latent in host memory, valid after `wait()`.
    relative_poses: the model's camera input [n, 4, 4], one matrix per latent frame.
    poses: the camera poses [m, 4, 4], one per video frame.
    number: the index of the chunk in the walk.
    inputs: the user's inputs for the chunk.
    began: the time in seconds at which the inputs were read (time.perf_counter).
    receipts: a Receipt for each input that takes effect in the chunk.
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


def make_receipts(inputs: Iterable[Input], now: float, chunk: int, size: int, frames: int) -> tuple[Receipt, ...]:
    """Return a Receipt for each of the inputs of a chunk, in order of arrival.

    now: the time in seconds at which the chunk began (time.monotonic).
    chunk: the index of the chunk in the walk.
    size: the number of latent frames in a chunk.
    frames: the number of video frames that the chunk adds. The start image, a video's first frame, is not counted.
    """
    first, before = chunk * size, (chunk + 1) * size * FRAMES_PER_LATENT - frames

    def latent_frame(each: Input) -> int:  # the start image shows a prompt, but no movement of the camera
        return first if each.kind in CHUNK_START_KINDS else (before + each.row) // FRAMES_PER_LATENT

    return tuple(
        Receipt(each.kind, each.number, each.arrived, now - each.arrived, latent_frame(each))
        for each in sorted(inputs, key=lambda each: each.arrived)
    )


class KeyChangedError(Exception):
    """An exception that interrupts the making of a chunk because a keyboard key has changed. `camera` is the camera as
    it was before the chunk."""

    def __init__(self, camera: WalkingCamera | RecordedCamera) -> None:
        self.camera = camera
