"""The Engine: the parts of a model that a walk (a steered video) uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..fields import check_text
from ..model.config import ModelConfig
from ..options import Window
from ..pipeline.state import WorldState
from ..pipeline.world import Schedule, World
from ..typed import check_types
from ..vae import PreviewDecoder, VideoDecoder
from .worlds.walls import WorldMap

LARGEST = 16.0
"""The largest allowed absolute value of a first frame's pixels, expected from -1 to 1. Larger values are probably
unscaled, from 0 to 255."""


class WalkVideo(Protocol):
    """The video file of one walk (a steered video).

    left_out: the number of frames dropped because the encoder was too slow.
    failure: the reason why the video ended early, or an empty string.
    add: appends frames; with `wait` it first waits for room in the queue.
    cut: removes frame `number` and all later frames.
    """

    left_out: int
    failure: str

    def add(self, frames: Any, *, wait: bool = False) -> None: ...
    def cut(self, number: int) -> None: ...
    def close(self) -> None: ...


RecordWalk = Callable[[Path, float, int, Callable[[str], None]], WalkVideo]
"""A function record(path, fps, first, report) that creates a video file and returns its writer. `first`: the first
frame's number. `report(reason)` is called if the video is incomplete."""


@dataclass(frozen=True)
class Engine:
    """The functions and settings of a model for walks (steered videos).

    window: the attention window in latent frames, always finite.
    chunk: the number of latent frames in a chunk.
    size: (height, width) of the video in pixels.
    new_vae_decoder: returns a VAE decoder, in fp32 if the argument is true.
    encode_image: pads a frame [3, H, W] with grey frames; returns their VAE latent [1, 16, n, h, w] on the CPU.
    encode_prompt: returns a text's embedding [1, L, D]; callable in any thread.
    new_tiny_decoder: returns a tiny decoder for shown frames; None if the VAE's frames are shown.
    record: opens each walk's video file; None if no videos are saved.
    """

    config: ModelConfig
    schedule: Schedule
    release: str
    window: Window
    chunk: int
    size: tuple[int, int]
    device: torch.device
    new_world: Callable[[], World]
    new_vae_decoder: Callable[[bool], VideoDecoder]
    encode_image: Callable[[Tensor], Tensor]
    encode_prompt: Callable[[str], Tensor]
    notes: tuple[str, ...] = ()
    dtype: str = ""
    new_tiny_decoder: Callable[[], PreviewDecoder] | None = None
    record: RecordWalk | None = None
    map: WorldMap | None = None

    @property
    def cells(self) -> tuple[int, int]:
        """The (height, width) of the latent, an eighth of the video's `size`."""
        return self.size[0] // 8, self.size[1] // 8


def check_seed(seed: int) -> None:
    """Raise InputError for a seed that torch does not accept."""
    if not -(2**63) <= seed < 2**64:
        raise InputError(f"`seed` {seed}: expected -2**63 to 2**64 - 1")


@dataclass(frozen=True)
class Start:
    """The start of a walk (a steered video).

    frame: the first frame, float32 [3, H, W], values -1 to 1.
    prompt: the first prompt; if empty, a continued video keeps its last prompt.
    lens: fx, fy, cx, cy at 832x480; None is the official examples' lens.
    seed: the seed of the noise.
    state: the state of the video to continue, or None; with a state, `lens` is ignored.
    image: `frame` encoded by the VAE, [1, 16, n, h, w]; None if not yet encoded.
    """

    frame: Tensor
    prompt: str
    lens: np.ndarray | None = None
    seed: int = 0
    state: WorldState | None = None
    image: Tensor | None = None

    @classmethod
    def of(cls, begin: Start | WorldState) -> Start:
        """Return a Start as it is, or for a WorldState a Start that continues its video. Raises InputError
        otherwise."""
        check_types({"begin": begin}, {"begin": Start | WorldState})
        return cls.after(begin) if isinstance(begin, WorldState) else begin

    @classmethod
    def after(cls, state: WorldState, prompt: str = "", seed: int = 0) -> Start:
        """Return a Start that continues the video of `state`. An empty prompt means the state's last prompt."""
        return cls(state.frame, prompt, None, seed, state)

    def check(self, engine: Engine) -> None:
        """Raise InputError if the frame or state does not fit the engine, or the prompt or seed is invalid."""
        given = {"frame": self.frame, "prompt": self.prompt, "seed": self.seed}
        check_types(given, {"frame": Tensor, "prompt": str, "seed": int})
        check_text("`prompt`", self.prompt)
        check_seed(self.seed)
        if self.state is not None:
            self.state.check(engine.config, engine.chunk, guided=False)
        if tuple(self.frame.shape) != (3, *engine.size):
            height, width = engine.size
            raise InputError(
                f"the first frame is {list(self.frame.shape)}, expected [3, {height}, {width}]: "
                f"bring it to {width}x{height}, or open the engine with its size"
            )
        if not (self.frame.is_floating_point() and self.frame.abs().max() <= LARGEST):  # False for NaN
            low, high = self.frame.min().item(), self.frame.max().item()
            found = f"{self.frame.dtype} with values {low:g} to {high:g}"
            raise InputError(f"the first frame is {found}; expected floats from -1 to 1, such as pixels / 127.5 - 1")
