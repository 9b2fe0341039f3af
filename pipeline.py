"""The engine's door for Python: the size of a video, and from conditioning to latent.

`sample` is the base model's: one run over two experts. `rollout` is the causal models' (LingBot-World Fast and 2.0):
one model that goes on chunk by chunk, with `World` for those who do not know the whole path beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from .errors import InputError
from .geometry import CHUNK, Geometry, explicit_geometry, output_geometry
from .headless.two_experts import sample
from .sampling import FewStepSchedule
from .world import World

if TYPE_CHECKING:
    from .model.dit import LingBotWorldModel

__all__ = ["CHUNK", "Geometry", "World", "explicit_geometry", "output_geometry", "rollout", "sample"]

ChunkCallback = Callable[[int, int], None]
"""callback(chunk, forward), after every forward of a chunk: the steps, then the one that fills the cache."""


def rollout(
    model: LingBotWorldModel,
    noise: Tensor,
    y: Tensor,
    context: Tensor,
    camera: Tensor | None = None,
    *,
    schedule: FewStepSchedule,
    window: int | None = None,
    sink: int = 0,
    renoise: Callable[[tuple[int, ...]], Tensor],
    callback: ChunkCallback | None = None,
) -> Iterator[Tensor]:
    """Yields the latent chunk by chunk, float32 [1, 16, 3, h, w] each, on the device of `noise`.

    model: causal, without a negative prompt. noise [1, 16, f, h, w], f a multiple of three. y [1, 20, f, h, w]: mask
    and image latent. context [1, L, D]: the prompt. camera [1, 384, f, h, w]. schedule: `sampling.few_step_schedule`.
    window: latent frames that a chunk looks back on, itself included (None: all); of them the video's first `sink` stay
    for good. `renoise(shape)` gives fresh standard normal noise, asked for before every step but a chunk's first.
    Raises InputError for a model that is not causal and for sizes that do not fit.
    """
    frames, height, width = noise.shape[2:]
    if frames % CHUNK:
        raise InputError(f"the noise has {frames} latent frames, expected a multiple of {CHUNK}")
    world = World(model, (height, width), window or frames, sink, device=noise.device)
    world.prompt = context.to(noise.device)
    for chunk in range(frames // CHUNK):
        part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        told = None if callback is None else lambda forward, chunk=chunk: callback(chunk, forward)
        seen = None if camera is None else camera[:, :, part]
        yield world.chunk(noise[:, :, part], y[:, :, part], seen, schedule, renoise, told)
