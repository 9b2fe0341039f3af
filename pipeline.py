"""The engine's functions for Python programs: the size of a video, and from conditioning to latent.

`sample` runs the two experts of the base model. `rollout` runs a causal model (LingBot-World Fast or 2.0), which makes
the video chunk by chunk. A program that learns of the camera path only while the video is made uses `World`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .errors import InputError
from .geometry import CHUNK, Geometry, explicit_geometry, output_geometry
from .headless.two_experts import sample
from .model.cache import CameraCache
from .model.kv_cache import KeyValueCache
from .sampling import FewStepSchedule, sample_few_steps
from .sampling.few_steps import Predict

if TYPE_CHECKING:
    from .model.dit import LingBotWorldModel

__all__ = ["CHUNK", "Geometry", "World", "explicit_geometry", "output_geometry", "rollout", "sample"]

ChunkCallback = Callable[[int, int], None]
"""callback(chunk, forward), after each forward of a chunk: those of the steps, and a last one that fills the cache."""


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

    model: causal; there is no negative prompt. noise [1, 16, f, h, w], f a multiple of three. y [1, 20, f, h, w]: mask
    and image latent. context [1, L, D]: the prompt. camera [1, 384, f, h, w]. schedule: from
    `sampling.few_step_schedule`. window: latent frames that a chunk attends to, its own included (None: all). Of these,
    the first `sink` are always the video's first ones. `renoise(shape)` returns new standard normal noise; it is called
    before every step but a chunk's first. Raises InputError for a model that is not causal and sizes that do not fit.
    """
    frames, height, width = noise.shape[2:]
    if frames % CHUNK:
        raise InputError(f"the noise has {frames} latent frames, expected a multiple of {CHUNK}")
    world = World(model, (height, width), window or frames, sink, device=noise.device)
    world.prompt = context.to(noise.device)
    for chunk in range(frames // CHUNK):
        part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        chunk_camera = None if camera is None else camera[:, :, part]
        chunk_callback = None if callback is None else partial(callback, chunk)
        yield world.chunk(noise[:, :, part], y[:, :, part], chunk_camera, schedule, renoise, chunk_callback)


class World:
    """A causal model with the keys and values of the video so far.

    `prompt` [1, L, D] may be replaced between chunks; frames made before keep what they were made with."""

    prompt: Tensor

    def __init__(
        self,
        model: LingBotWorldModel,
        size: tuple[int, int],
        window: int,
        sink: int = 0,
        *,
        device: torch.device | str,
        eight_bit: bool = False,
        on_host: bool = False,
        camera_cache_bytes: float | None = None,
    ) -> None:
        """`size`: height and width of the latent. `window` and `sink` as in `rollout`; `eight_bit` and `on_host` as in
        `KeyValueCache`. `camera_cache_bytes` limits what is cached for a chunk's forwards, of which there are usually
        five: the camera layers' results, and the prompt's keys and values (None: no limit). Raises InputError for a
        model that is not causal and a window that is too small."""
        if not model.config.causal:
            raise InputError("this is an expert of the base model, which makes a video as a whole; a rollout takes a "
                             "causal checkpoint (LingBot-World Fast or 2.0)")  # fmt: skip
        if window < sink + CHUNK:
            raise InputError(f"window is {window} latent frames, expected at least sink ({sink}) + {CHUNK}")
        self._model, self._device = model, torch.device(device)
        self._history = KeyValueCache(
            model.config, size[0] * size[1] // 4, window, sink,
            device=self._device, dtype=model.compute_dtype, eight_bit=eight_bit, on_host=on_host,
        )  # fmt: skip
        self._camera_cache = None if camera_cache_bytes == 0 else CameraCache(camera_cache_bytes)

    @torch.no_grad()
    def chunk(
        self,
        noise: Tensor,
        y: Tensor,
        camera: Tensor | None,
        schedule: FewStepSchedule,
        renoise: Callable[[tuple[int, ...]], Tensor],
        callback: Callable[[int], None] | None = None,
    ) -> Tensor:
        """The next three latent frames, float32 [1, 16, 3, h, w]. The arguments are those of `rollout`, for these
        frames. `callback(forward)` is called after each of the chunk's forwards."""
        predict = self._begin_chunk(y, camera, callback)
        clean = sample_few_steps(predict, noise.to(self._device).float(), schedule, renoise)
        self._remember(predict, clean)
        return clean

    @torch.no_grad()
    def replay(self, latent: Tensor, y: Tensor, camera: Tensor | None) -> None:
        """Go on after a chunk [1, 16, 3, h, w] that was made before. One forward gives the same keys and values as when
        it was made."""
        self._remember(self._begin_chunk(y, camera, None), latent.to(self._device).float())

    def _begin_chunk(self, y: Tensor, camera: Tensor | None, callback: Callable[[int], None] | None) -> Predict:
        """Begin the next chunk. Returns the function that predicts its velocity."""
        y = y.to(self._device)
        camera = None if camera is None else camera.to(self._device)
        options = {"kv_cache": self._history, "camera_cache": self._camera_cache}
        self._history.begin(CHUNK)
        done = 0

        def predict(x: Tensor, timestep: int) -> Tensor:
            nonlocal done
            timesteps = torch.full((1,), timestep, device=self._device)
            velocity = self._model(torch.cat([x, y.to(x)], dim=1), timesteps, self.prompt, camera, options).float()
            if callback is not None:
                callback(done)
            done += 1
            return velocity

        return predict

    def _remember(self, predict: Predict, clean: Tensor) -> None:
        """Keep the clean chunk's keys and values for later chunks."""
        self._history.keep = True
        try:
            predict(clean, 0)
        finally:
            self._history.keep = False
