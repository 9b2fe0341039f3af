"""A causal model with the keys and values of the video so far: LingBot-World Fast and 2.0, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..model.block_graphs import BlockGraphs
from ..model.cache import CameraCache, same
from ..model.config import ModelConfig
from ..model.host_memory import upload
from ..model.kv_cache import KeyValueCache
from ..model.parallel import SequenceParallel
from ..options import CHUNK
from ..sampling import FewStepSchedule, sample_few_steps

if TYPE_CHECKING:
    from ..options import Progress
    from .state import WorldState

MakeCamera = Callable[[np.ndarray, np.ndarray], "Tensor | None"]
"""(poses [3, 4, 4], lens [n, 4]) of a chunk -> the camera that the model is given."""


class CausalModel(Protocol):
    """What a World asks of its model: `LingBotWorldModel`, or a host's way to call one."""

    config: ModelConfig
    compute_dtype: torch.dtype

    def __call__(
        self, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor | None, options: dict, /
    ) -> Tensor: ...


def check_causal(config: ModelConfig) -> None:
    """Raises InputError for an expert of the base model."""
    if not config.causal:
        raise InputError("this is an expert of the base model, which makes a video as a whole; a rollout takes a "
                         "causal checkpoint (LingBot-World Fast or 2.0)")  # fmt: skip


class HasWindow(Protocol):
    """A release, or a state."""

    @property
    def window(self) -> int: ...

    @property
    def sink(self) -> int: ...


def chosen_window(window: int | None, sink: int | None, otherwise: HasWindow) -> tuple[int, int]:
    """Window and sink as they are asked for; where one is None, that of a release or of a state. Raises InputError."""
    chosen = otherwise.window if window is None else window, otherwise.sink if sink is None else sink
    check_window(*chosen)
    return chosen


def check_window(window: int, sink: int) -> None:
    """Raises InputError for a window (latent frames, 0 is the whole video) that its sink leaves no room in."""
    if sink < 0 or window < 0 or (window and window < sink + CHUNK):
        raise InputError(f"`window` {window} and `sink` {sink}: a window holds its sink and a chunk of {CHUNK} latent "
                         f"frames, so at least {max(sink, 0) + CHUNK}, or 0 for the whole video")  # fmt: skip


def held_frames(window: int, sink: int, frames: int) -> tuple[int, int]:
    """Latent frames whose keys and values are held at once in a video of `frames`, and how many of them stay for good;
    a `window` of 0 is the whole video."""
    held = min(window, frames) if window else frames
    return held, min(sink, held - CHUNK)


def chunk_conditioning(image: Tensor) -> Iterator[Tensor]:
    """`y` [1, 20, 3, h, w] of each chunk of a video without an end; the mask is 1 in its first latent frame.

    image [1, 16, n, h, w]: the start image and the grey frames after it, up to where they repeat."""
    mask = torch.zeros_like(image[:, :4, :1])
    for first in count(0, CHUNK):
        frames = [image[:, :, min(index, image.shape[2] - 1)] for index in range(first, first + CHUNK)]
        masks = [mask + (index == 0) for index in range(first, first + CHUNK)]
        yield torch.cat([torch.cat(masks, dim=2), torch.stack(frames, dim=2)], dim=1)


@dataclass(frozen=True)
class _Chunk:
    """What the forwards of a chunk are given beside the latent."""

    y: Tensor
    prompt: Tensor
    camera: Tensor | None
    camera_cache: CameraCache | None


class World:
    """A causal model with the keys and values of the video so far.

    Those of a chunk are computed by a forward of its own when the next chunk begins. So a chunk is returned before that
    forward runs, and the last chunk of a video needs none.

    `prompt` [1, L, D] may be replaced between chunks, but not written over; frames made before keep what they were made
    with."""

    prompt: Tensor

    def __init__(
        self,
        model: CausalModel,
        size: tuple[int, int],
        window: int,
        sink: int = 0,
        *,
        device: torch.device | str,
        eight_bit: bool = False,
        on_host: bool = False,
        fp8: bool = False,
        device_blocks: int = 0,
        camera_cache_bytes: float | None = None,
        sequence_parallel: SequenceParallel | None = None,
        graphs: bool = False,
    ) -> None:
        """`size`: height and width of the latent. `window` and `sink` as in `rollout`; `eight_bit`, `on_host`, `fp8`
        and `device_blocks` as in `KeyValueCache`. `camera_cache_bytes` limits what is cached for a chunk's forwards, of
        which there are usually five: the camera layers' results, and the prompt's keys and values (None: no limit).
        `sequence_parallel`: the processes that make the video together; each holds the keys and values of its share of
        the heads. `graphs`: the blocks' kernels are recorded and replayed (see BlockGraphs) where keys and values lie
        on a GPU in the compute dtype; the model's weights have to stay where they are. Raises InputError for a model
        that is not causal, a window that is too small, and heads that cannot be shared."""
        check_causal(model.config)
        self._model, self._device = model, torch.device(device)
        self._options: dict[str, Any] = {}
        config = model.config
        if sequence_parallel is not None:
            config, self._options["sequence_parallel"] = sequence_parallel.local(config), sequence_parallel
        self._history = KeyValueCache(
            config, size[0] * size[1] // 4, window, sink,
            device=self._device, dtype=model.compute_dtype,
            eight_bit=eight_bit, on_host=on_host, fp8=fp8, device_blocks=device_blocks,
        )  # fmt: skip
        graphs = graphs and self._device.type == "cuda" and self._history.in_place
        if graphs:
            self._options["block_graphs"] = BlockGraphs()
        self._camera_cache = None if camera_cache_bytes == 0 else CameraCache(camera_cache_bytes, steady=graphs)
        self._camera: tuple[Tensor, Tensor] | None = None
        self._made: tuple[_Chunk, Tensor] | None = None  # the chunk before, and its latent, until it is remembered
        self._begun, self._cut_short = False, False

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
        frames. `callback(forward)` is called after each forward; the first one remembers the chunk before, if this
        World made it. A GPU reads what is given in pinned memory while the chunk is made. Raises InputError where an
        earlier forward was cut short while it overwrote keys and values."""
        done = count()

        def tell() -> None:
            if callback is not None:
                callback(next(done))

        if self._remember_made():
            tell()
        chunk = self._begin(y, camera, self._camera_cache)

        def predict(x: Tensor, timestep: int) -> Tensor:
            velocity = self._predict(chunk, x, timestep)
            tell()
            return velocity

        clean = sample_few_steps(predict, upload(noise, self._device).float(), schedule, renoise)
        self._made, self._begun = (chunk, clean.clone()), False
        return clean

    @torch.no_grad()
    def remember(self) -> None:
        """Remember the chunk that was made last now, and not when the next one begins."""
        self._remember_made()

    @torch.no_grad()
    def replay(self, latent: Tensor, y: Tensor, camera: Tensor | None) -> None:
        """Go on after a chunk [1, 16, 3, h, w] that was made before. One forward gives the same keys and values as when
        it was made. It goes past the camera cache, which would be filled for no second forward."""
        self._remember_made()
        self._remember(self._begin(y, camera, None), latent.to(self._device).float())
        self._begun = False

    def continue_from(
        self, state: WorldState, conditioning: Iterator[Tensor], camera: MakeCamera, progress: Progress | None = None
    ) -> None:
        """Replay the chunks of a state, each with its own prompt and camera; `conditioning` gives their `y`."""
        poses, lens = state.poses.numpy(), state.lens.numpy()
        for chunk, context in enumerate(state.contexts()):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            self.prompt = context.to(self._device)
            self.replay(state.latent[:, :, part], next(conditioning), camera(poses[part], lens[part]))
            if progress is not None:
                progress(chunk + 1, state.chunks)

    def _begin(self, y: Tensor, camera: Tensor | None, cache: CameraCache | None) -> _Chunk:
        """Begin the next chunk, with copies of `y` and the camera: they may be written over before it is remembered."""
        self._history.begin(again=self._begun)
        self._begun = True
        y = y.clone() if y.device.type == self._device.type else upload(y, self._device)
        return _Chunk(y, self.prompt, None if camera is None else self._uploaded(camera), cache)

    def _predict(self, chunk: _Chunk, x: Tensor, timestep: int) -> Tensor:
        options = {"kv_cache": self._history, "camera_cache": chunk.camera_cache, **self._options}
        timesteps = torch.full((1,), timestep, device=self._device)
        x = torch.cat([x, chunk.y.to(x)], dim=1)
        return self._model(x, timesteps, chunk.prompt, chunk.camera, options).float()

    def _uploaded(self, camera: Tensor) -> Tensor:
        """The camera on the device. One in host memory is compared with that of the chunk before: if they are the same,
        the one that was uploaded then is given again, and the camera cache knows it. The cache would compare their
        values on the GPU, and Python would wait for all that is queued there."""
        if camera.device.type == self._device.type:
            return camera.clone()
        if self._camera is None or not same(self._camera[0], camera):
            self._camera = camera.clone(), upload(camera, self._device)
            if self._camera_cache is not None:
                self._camera_cache.clear_source()  # the prompt's keys and values stay
        return self._camera[1]

    def _remember_made(self) -> bool:
        """Remember the chunk that `chunk` made last, if that was not done. Whether there was one."""
        if self._cut_short:
            raise InputError("keys and values may no longer be whole, since a forward was cut short while a chunk "
                             "was remembered; go on from a state that was saved, in a new World")  # fmt: skip
        if self._made is None:
            return False
        self._remember(*self._made)
        self._made = None
        return True

    def _remember(self, chunk: _Chunk, clean: Tensor) -> None:
        """Keep the clean chunk's keys and values for later chunks."""
        self._history.keep = True
        try:
            self._predict(chunk, clean, 0)
        except BaseException:
            self._cut_short = not self._history.repeatable
            raise
        finally:
            self._history.keep = False
