"""The loop that generates a causal model's video chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..model.parallel import SequenceParallel
from ..options import CHUNK, GUIDE_SCALE, STEPS, SolverName, Window
from ..sampling import FewStepSchedule, GuidedSchedule
from .world import ALL_ON_DEVICE, CausalModel, Renoise, Schedule, World, WorldMemory

if TYPE_CHECKING:
    from ..model.dit import LingBotWorldModel

ChunkCallback = Callable[[int, int], None]
"""A function callback(chunk, forward), called after each forward with the chunk's index in the whole video and the
forward's index in the chunk."""


class Chunk(NamedTuple):
    """The inputs of one chunk of f latent frames.

    latent: [1, 16, f, h, w], noise, or the finished latent if `made`.
    y: [1, 20, f, h, w], the mask and the image latent.
    camera: [1, 384, f, h, w], or 448 channels for action models; None without camera layers.
    context, negative: [1, L, D], the prompt embeddings.
    made: whether an earlier run generated the chunk.
    """

    latent: Tensor
    y: Tensor
    camera: Tensor | None
    context: Tensor
    negative: Tensor | None = None
    made: bool = False


@dataclass(frozen=True)
class ChunkLoop:
    """The loop that generates a causal model's video chunk by chunk, with the settings shared by all chunks.

    size: the height and width of the latent.
    cache_window: the attention window of the KV cache; `frames` is a number, never 0 for all.
    chunk: the number of latent frames per chunk.
    """

    size: tuple[int, int]
    cache_window: Window
    chunk: int
    schedule: Schedule

    def world(
        self,
        model: CausalModel,
        device: torch.device | str,
        memory: WorldMemory = ALL_ON_DEVICE,
        sequence_parallel: SequenceParallel | None = None,
    ) -> World:
        """Return a World: `model` with an empty KV cache of the loop's size and window. It is for callers that generate
        each chunk themselves and do not call `run`."""
        return World(
            model,
            self.size,
            self.cache_window,
            chunk=self.chunk,
            guided=self.schedule.guide_scale != 1,
            device=device,
            memory=memory,
            sequence_parallel=sequence_parallel,
        )

    def run(
        self,
        model: CausalModel,
        chunks: Iterable[Chunk],
        renoise: Renoise,
        *,
        device: torch.device | str,
        memory: WorldMemory = ALL_ON_DEVICE,
        sequence_parallel: SequenceParallel | None = None,
        callback: ChunkCallback | None = None,
    ) -> Iterator[Tensor]:
        """Yield each chunk's latent, float32 [1, 16, chunk, h, w]. The next of `chunks` is requested only when the
        caller requests the next latent."""
        # 1. The key and value cache starts empty.
        world = self.world(model, device, memory, sequence_parallel)
        context = negative = None
        for number, given in enumerate(chunks):
            # 2. The prompt may change from chunk to chunk. While it stays the same, its cached keys and values are
            # reused.
            if given.context is not context:
                world.prompt, context = given.context.to(device), given.context
            if given.negative is not None and given.negative is not negative:
                world.negative, negative = given.negative.to(device), given.negative
            # 3. A chunk that was made before needs only a cache update: one forward at timestep 0.
            if given.made:
                world.replay(given.latent, given.y, given.camera)
                yield given.latent
                continue
            # 4. The cache is updated with the previous chunk, then this chunk is denoised step by step.
            forward_done = None if callback is None else partial(callback, number)
            yield world.chunk(given.latent, given.y, given.camera, self.schedule, renoise, forward_done)


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
    chunk: int = CHUNK,
    renoise: Renoise,
    callback: ChunkCallback | None = None,
    sequence_parallel: SequenceParallel | None = None,
) -> Iterator[Tensor]:
    """Yield the latents of a few-step causal model's chunks, float32 [1, 16, chunk, h, w]. Raises InputError for
    invalid arguments.

    noise: [1, 16, f, h, w]; f is a multiple of `chunk`.
    y: [1, 20, f, h, w], the mask and the image latent.
    context: [1, L, D], the prompt embedding.
    camera: [1, 384, f, h, w], from `camera_embedding`; None without camera layers.
    schedule: the denoising steps of each chunk.
    window, sink: see `Window`; `window` None: all frames.
    renoise: a function renoise(shape), called between the denoising steps, that returns new standard normal noise.
    callback: a function callback(chunk, forward), called with both indices after each forward.
    """
    loop = _loop(noise, y, camera, schedule, Window(window or 0, sink), chunk)
    return loop.run(
        model,
        _cut(chunk, noise, y, camera, context),
        renoise,
        device=noise.device,
        sequence_parallel=sequence_parallel,
        callback=callback,
    )


def rollout_guided(
    model: LingBotWorldModel,
    noise: Tensor,
    y: Tensor,
    context: Tensor,
    negative: Tensor,
    camera: Tensor | None = None,
    *,
    steps: int = STEPS,
    shift: float,
    guide_scale: float = GUIDE_SCALE,
    solver: SolverName = "unipc",
    chunk: int = CHUNK,
    window: int | None = None,
    sink: int = 0,
    callback: ChunkCallback | None = None,
    sequence_parallel: SequenceParallel | None = None,
) -> Iterator[Tensor]:
    """Yield the latents of a causal-pretrain model's chunks, generated with classifier-free guidance, float32 [1, 16,
    chunk, h, w].

    negative: [1, L, D], the negative prompt's embedding; unused if `guide_scale` is 1.

    `steps`, `shift`, `guide_scale` and `solver` are those of `sample`. The other arguments are those of `rollout`.
    """
    schedule = GuidedSchedule(steps, shift, guide_scale, solver)
    loop = _loop(noise, y, camera, schedule, Window(window or 0, sink), chunk)
    return loop.run(
        model,
        _cut(chunk, noise, y, camera, context, negative),
        torch.zeros,
        device=noise.device,
        sequence_parallel=sequence_parallel,
        callback=callback,
    )


def _loop(noise: Tensor, y: Tensor, camera: Tensor | None, schedule: Schedule, window: Window, chunk: int) -> ChunkLoop:
    frames, height, width = noise.shape[2:]
    if chunk < 1 or not frames or frames % chunk:
        raise InputError(f"the noise has {frames} latent frames, expected a multiple of {chunk}, at least 1")
    for name, given in (("y", y), ("camera", camera)):
        if given is not None and given.shape[2:] != noise.shape[2:]:
            raise InputError(
                f"frames, height and width of `{name}` are {list(given.shape[2:])}, of the noise "
                f"{list(noise.shape[2:])}; make both for the same video"
            )
    window.check(chunk)
    return ChunkLoop((height, width), window.in_cache(frames, chunk), chunk, schedule)


def _cut(
    chunk: int, noise: Tensor, y: Tensor, camera: Tensor | None, context: Tensor, negative: Tensor | None = None
) -> Iterator[Chunk]:
    for first in range(0, noise.shape[2], chunk):
        part = slice(first, first + chunk)
        of_chunk = None if camera is None else camera[:, :, part]
        yield Chunk(noise[:, :, part], y[:, :, part], of_chunk, context, negative)
