"""The engine's door for Python: the size of a video, and from conditioning to latent.

`sample` is the base model's: one run over two experts. `rollout` is the causal models' (LingBot-World Fast and 2.0):
one model that goes on chunk by chunk, with `World` for those who do not know the whole path beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .errors import InputError
from .geometry import CHUNK, Geometry, explicit_geometry, output_geometry
from .headless.two_experts import sample
from .model.cache import CameraCache
from .model.kv_cache import KeyValueCache
from .sampling import FewStepSchedule, sample_few_steps

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


class World:
    """A causal model with its memory of the video so far.

    `prompt` [1, L, D] may be exchanged between chunks: frames that are there keep the old one's keys and values.
    `camera_cache_bytes` may hold what the camera layers make of a chunk, for its five forwards, and the prompt's keys
    and values."""

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
    ):
        """`size`: height and width of the latent. `window` and `sink` as in `rollout`; `eight_bit` and `on_host` as in
        `KeyValueCache`. Raises InputError for a model that is not causal and a window that is too small."""
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
        limit = camera_cache_bytes
        self._camera_cache = None if limit == 0 else CameraCache(limit)

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
        """The next three latent frames, float32 [1, 16, 3, h, w]; the arguments are the chunk's parts of `rollout`'s.
        `callback(forward)` comes after each of the chunk's forwards."""
        forward = self._forward(y, camera, callback)
        clean = sample_few_steps(forward, noise.to(self._device).float(), schedule, renoise)
        self._remember(forward, clean)
        return clean

    @torch.no_grad()
    def replay(self, latent: Tensor, y: Tensor, camera: Tensor | None) -> None:
        """Remember a chunk [1, 16, 3, h, w] that was made before: one forward instead of five, and the same memory."""
        self._remember(self._forward(y, camera, None), latent.to(self._device).float())

    def _forward(self, y: Tensor, camera: Tensor | None, callback: Callable[[int], None] | None):
        """Predictions for a new chunk: (x, timestep) -> velocity."""
        y = y.to(self._device)
        camera = None if camera is None else camera.to(self._device)
        options = {"kv_cache": self._history, "camera_cache": self._camera_cache}
        self._history.begin(CHUNK)
        done = 0

        def forward(x: Tensor, timestep: int) -> Tensor:
            nonlocal done
            timesteps = torch.full((1,), timestep, device=self._device)
            velocity = self._model(torch.cat([x, y.to(x)], dim=1), timesteps, self.prompt, camera, options).float()
            if callback is not None:
                callback(done)
            done += 1
            return velocity

        return forward

    def _remember(self, forward: Callable[[Tensor, int], Tensor], clean: Tensor) -> None:
        self._history.keep = True
        try:
            forward(clean, 0)
        finally:
            self._history.keep = False
