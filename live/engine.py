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
"""The absolute values of a first frame must not exceed this limit. Values above 1 are accepted, because resizing and
HDR images produce them. Values above the limit are probably pixels from 0 to 255 that were not scaled to -1 to 1."""


class WalkVideo(Protocol):
    """The video file of one walk (a steered video).

    left_out: the number of frames that were dropped because the encoder was too slow.
    failure: the reason why the video has ended early, or an empty string.

    `add` appends frames. It returns immediately, except that with `wait` it waits for room in the encoder's queue.
    `cut` removes frame `number` and all later frames, because the user has gone back, and returns immediately. `close`
    waits until all frames are encoded.
    """

    left_out: int
    failure: str

    def add(self, frames: Any, *, wait: bool = False) -> None: ...
    def cut(self, number: int) -> None: ...
    def close(self) -> None: ...


RecordWalk = Callable[[Path, float, int, Callable[[str], None]], WalkVideo]
"""The type of a function record(path, fps, first, report) that opens a video file and returns a WalkVideo. `first` is
the number that the video's first frame has in the walk. `report(reason)` is called if the video becomes incomplete."""


@dataclass(frozen=True)
class Engine:
    """The functions and settings of a model for walks (steered videos).

    config: the model's sizes.
    schedule: the timesteps and sigmas of a chunk.
    release: the name of the model's release, such as LingBot-World 2.0.
    window: the attention window, in latent frames. It is always limited, because a walk has no end.
    chunk: the number of latent frames in a chunk.
    size: (height, width) of the video in pixels.
    device: the device of the model.
    new_world: returns a new World, which makes chunks and caches their keys and values.
    new_decoder: new_decoder(exact) returns a new decoder, in fp32 if `exact`.
    encode_image: maps a frame [3, H, W] to a latent [1, 16, n, h, w] on the CPU.
    encode_prompt: maps a text to an embedding [1, L, D]; any thread may call it.
    notes: notes for the user.
    dtype: the name of the model's dtype, for the walk's record.
    decoder: the name of the decoder of the frames that the user sees, "vae" or TINY_DECODER.
    new_preview: returns a new tiny decoder for the frames that the user sees; None if the VAE decodes them.
    record: opens the video file of each saved walk; None without videos.
    map: the walls of a known world, or None.
    """

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
    prompt: the first prompt; with a `state`, an empty prompt means the state's last prompt.
    lens: float [4], fx, fy, cx, cy in pixels of an 832x480 image; None is the lens of the official examples.
    seed: the seed of the noise.
    state: the state of an earlier video that the walk continues, or None. The lens is then the state's, and `frame`
    must be the state's too, as in `after`.
    image: the latent that the VAE's encoder returns for the frame; None encodes the frame.
    """

    frame: Tensor
    prompt: str
    lens: np.ndarray | None = None
    seed: int = 0
    state: WorldState | None = None
    image: Tensor | None = None

    @classmethod
    def of(cls, begin: Start | WorldState) -> Start:
        """Return `begin` if it is a Start. If it is a WorldState, return a Start that continues its video. Raises
        InputError for other types."""
        check_types({"begin": begin}, {"begin": Start | WorldState})
        return cls.after(begin) if isinstance(begin, WorldState) else begin

    @classmethod
    def after(cls, state: WorldState, prompt: str = "", seed: int = 0) -> Start:
        """Return a Start that continues the video of `state`. An empty prompt means the state's last prompt. `seed` is
        the seed of the noise."""
        return cls(state.frame, prompt, None, seed, state)

    def check(self, engine: Engine) -> None:
        """Raise InputError for a frame or state that does not fit the engine, and for an invalid prompt or seed."""
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
