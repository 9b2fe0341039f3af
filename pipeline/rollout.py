"""A causal model's video from noise, prompt and camera, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from ..errors import InputError
from ..model.parallel import SequenceParallel
from ..options import CHUNK
from ..sampling import FewStepSchedule
from .world import World, check_window, held_frames

if TYPE_CHECKING:
    from ..model.dit import LingBotWorldModel

ChunkCallback = Callable[[int, int], None]
"""callback(chunk, forward), after each forward of a chunk: the one that remembers the chunk before (the first chunk has
none), then one for each step."""


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
    sequence_parallel: SequenceParallel | None = None,
) -> Iterator[Tensor]:
    """Yields the latent chunk by chunk, float32 [1, 16, 3, h, w] each, on the device of `noise`.

    model: causal; there is no negative prompt. noise [1, 16, f, h, w], f a multiple of three. y [1, 20, f, h, w]: mask
    and image latent. context [1, L, D]: the prompt. camera [1, 384, f, h, w]. schedule: from
    `sampling.few_step_schedule`. window: latent frames that a chunk attends to, its own included (None: all). Of these,
    the first `sink` are always the video's first ones. `renoise(shape)` returns new standard normal noise; it is called
    before every step but a chunk's first. `sequence_parallel`: the processes that make the video together, all of them
    with the same arguments. Raises InputError for a model that is not causal and sizes that do not fit.
    """
    frames, height, width = noise.shape[2:]
    if not frames or frames % CHUNK:
        raise InputError(f"the noise has {frames} latent frames, expected a multiple of {CHUNK}")
    for name, given in (("y", y), ("camera", camera)):
        if given is not None and given.shape[2:] != noise.shape[2:]:
            raise InputError(f"frames, height and width of `{name}` are {list(given.shape[2:])}, of the noise "
                             f"{list(noise.shape[2:])}; make both for the same video")  # fmt: skip
    check_window(window or 0, sink)
    held = held_frames(window or 0, sink, frames)
    world = World(model, (height, width), *held, device=noise.device, sequence_parallel=sequence_parallel)
    world.prompt = context.to(noise.device)
    for chunk in range(frames // CHUNK):
        part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        chunk_camera = None if camera is None else camera[:, :, part]
        chunk_callback = None if callback is None else partial(callback, chunk)
        yield world.chunk(noise[:, :, part], y[:, :, part], chunk_camera, schedule, renoise, chunk_callback)
