"""What a walk needs of a model, a text encoder and a VAE. The command opens one, and so can a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..model.config import ModelConfig
from ..options import Window
from ..pipeline.world import Schedule, World
from ..vae import VideoDecoder


@dataclass(frozen=True)
class Engine:
    """The functions make things anew, for videos of a `size` (height and width in pixels): `new_world()`, `new_decoder(
    exact)`, in fp32 if `exact`; `encode_image(frame)` of [3, H, W] to a latent [1, 16, n, h, w] on the CPU and
    `encode_prompt(text)` to an embedding [1, L, D], which another thread may call. `chunk` counts latent frames. A walk
    has no end, so there is always a `window`. `notes`: what a person should know of it."""

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

    @property
    def cells(self) -> tuple[int, int]:
        """Height and width of the latent."""
        return self.size[0] // 8, self.size[1] // 8


@dataclass(frozen=True)
class Start:
    """Where a walk begins: the first `frame` as the VAE takes it, float32 [3, H, W], what it shows, and the `lens` [4]
    at 832x480 (None: the official examples')."""

    frame: Tensor
    prompt: str
    lens: np.ndarray | None = None
    seed: int = 0
