"""The parts of a model that a walk uses: world, decoder and encoders. The command opens an engine, and so can a
host."""

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
from .worlds.walls import WorldMap


class WalkVideo(Protocol):
    """The video file of one walk. Only `close`, and `add` with `wait`, wait for the encoder."""

    left_out: int
    failure: str

    def add(self, frames: Any, *, wait: bool = False) -> None: ...
    def cut(self, number: int) -> None: ...
    def close(self) -> None: ...


RecordWalk = Callable[[Path, float, int, Callable[[str], None]], WalkVideo]
"""The signature record(path, fps, first, tell), which opens a video that begins with frame number `first` of the walk;
tell(reason) is called if the video becomes incomplete."""


@dataclass(frozen=True)
class Engine:
    """The model's functions and settings for videos of a `size` (height and width in pixels). Each call returns a new
    object: `new_world()`, and `new_decoder(exact)`, in fp32 if `exact`. `encode_image(frame)` maps [3, H, W] to a
    latent [1, 16, n, h, w] on the CPU, and `encode_prompt(text)` returns an embedding [1, L, D]; another thread may
    call it. `chunk` counts latent frames. `window` is always limited, because a walk has no end. `notes` are for the
    user. `dtype`: the model's dtype, for the record. `decoder`: the name of the decoder of shown frames.
    `new_preview()` returns the preview decoder, if shown frames are a preview. `record`, if set, opens the video file
    of each saved walk. `map`: the walls of a world whose map is known."""

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
    map: WorldMap | None = None

    @property
    def cells(self) -> tuple[int, int]:
        """The height and width of the latent."""
        return self.size[0] // 8, self.size[1] // 8


@dataclass(frozen=True)
class Start:
    """The start of a walk: the first `frame` as the VAE's input, float32 [3, H, W], its prompt, and the `lens` [4] at
    832x480 (None: the official examples'). With a `state` the walk continues it: then `frame` and lens are the state's,
    and an empty prompt means its last one. `image`: the latent of the frame, None to encode it."""

    frame: Tensor
    prompt: str
    lens: np.ndarray | None = None
    seed: int = 0
    state: WorldState | None = None
    image: Tensor | None = None

    @classmethod
    def of(cls, begin: Start | WorldState) -> Start:
        """Return a Start unchanged, or the Start that continues a state."""
        return cls.after(begin) if isinstance(begin, WorldState) else begin

    @classmethod
    def after(cls, state: WorldState, prompt: str = "", seed: int = 0) -> Start:
        """Return the Start that continues a state."""
        return cls(state.frame, prompt, None, seed, state)

    def check(self, engine: Engine) -> None:
        """Raise InputError if a walk by this engine cannot begin here."""
        if self.state is not None:
            self.state.check(engine.config, engine.chunk, guided=False)
        if tuple(self.frame.shape) != (3, *engine.size):
            height, width = engine.size
            raise InputError(
                f"the first frame is {list(self.frame.shape)}, expected [3, {height}, {width}]: "
                f"bring it to {width}x{height}, or open the engine with its size"
            )
