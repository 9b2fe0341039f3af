"""What a walk needs of a model, a text encoder and a VAE. The command opens one, and so can a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..model.config import ModelConfig
from ..options import Window
from ..pipeline.state import WorldState
from ..pipeline.world import Schedule, World
from ..vae import PreviewDecoder, VideoDecoder


class WalkVideo(Protocol):
    """The video of one walk. No method waits for the encoder but `close`, and `add` where it is told to."""

    left_out: int
    failure: str

    def add(self, frames: Any, *, wait: bool = False) -> None: ...
    def cut(self, number: int) -> None: ...
    def close(self) -> None: ...


RecordWalk = Callable[[Path, float, int, Callable[[str], None]], WalkVideo]
"""record(path, fps, first, tell) begins a video with frame number `first` of the walk; tell(reason) is called where it
is no longer whole."""


@dataclass(frozen=True)
class Engine:
    """The functions make things anew, for videos of a `size` (height and width in pixels): `new_world()`, `new_decoder(
    exact)`, in fp32 if `exact`; `encode_image(frame)` of [3, H, W] to a latent [1, 16, n, h, w] on the CPU and
    `encode_prompt(text)` to an embedding [1, L, D], which another thread may call. `chunk` counts latent frames. A walk
    has no end, so there is always a `window`. `notes`: what a person should know of it. `dtype`: the model's, for the
    record. `new_preview()` makes the decoder of the frames that are shown where these are a preview by `decoder`;
    `record`, where it is there, makes the video file of each walk that is kept in a folder."""

    config: ModelConfig
    schedule: Schedule
    release: str
    window: Window
    chunk: int
    size: tuple[int, int]
    device: torch.device
    new_world: Callable[[], World]
    new_decoder: Callable[[bool], VideoDecoder]
    encode_image: Callable[[Tensor], Tensor]
    encode_prompt: Callable[[str], Tensor]
    notes: tuple[str, ...] = ()
    dtype: str = ""
    decoder: str = "vae"
    new_preview: Callable[[], PreviewDecoder] | None = None
    record: RecordWalk | None = None

    @property
    def cells(self) -> tuple[int, int]:
        """Height and width of the latent."""
        return self.size[0] // 8, self.size[1] // 8


@dataclass(frozen=True)
class Start:
    """Where a walk begins: the first `frame` as the VAE takes it, float32 [3, H, W], what it shows, and the `lens` [4]
    at 832x480 (None: the official examples'). Of a `state` the walk is what comes next: then `frame` is the state's,
    the lens is its own, and an empty prompt is its last one. `image`: the latent of the frame, None to encode it."""

    frame: Tensor
    prompt: str
    lens: np.ndarray | None = None
    seed: int = 0
    state: WorldState | None = None
    image: Tensor | None = None

    @classmethod
    def of(cls, begin: Start | WorldState) -> Start:
        """The same as a Start."""
        return cls.after(begin) if isinstance(begin, WorldState) else begin

    @classmethod
    def after(cls, state: WorldState, prompt: str = "", seed: int = 0) -> Start:
        """What comes next of a state."""
        return cls(state.frame, prompt, None, seed, state)

    def check(self, engine: Engine) -> None:
        """Raises InputError for what a walk by this engine cannot begin with."""
        if self.state is not None:
            self.state.check(engine.config, engine.chunk, guided=False)
        if tuple(self.frame.shape) != (3, *engine.size):
            height, width = engine.size
            raise InputError(
                f"the first frame is {list(self.frame.shape)}, and this engine's pictures are [3, {height}, {width}]: "
                f"bring it to {width}x{height}, or open the engine with its size"
            )
