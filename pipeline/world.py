"""A causal model and its KV cache, which generate a video chunk by chunk."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InputError
from ..model.attention.choose_8bit import may_be_recorded
from ..model.attention.exact import FRAMES_BYTES, attends_to_frames, frames_bytes
from ..model.cache import CameraCache, same
from ..model.config import ModelConfig
from ..model.forward import ForwardOptions
from ..model.graphs.forward import ForwardGraphs
from ..model.host_memory import pinned, queued_on, upload
from ..model.kv.cache import KeyValueCache
from ..model.kv.place import ON_DEVICE, KeyValuePlace
from ..model.parallel import SequenceParallel
from ..options import CHUNK, AttentionMode, Window
from ..sampling import FewStepSchedule, GuidedSchedule, guide

Schedule = FewStepSchedule | GuidedSchedule
Renoise = Callable[[tuple[int, ...]], Tensor]
"""A function renoise(shape) that returns new standard normal noise."""


class CausalModel(Protocol):
    """The attributes and the call that World needs of a model. LingBotWorldModel and ComfyUI's wrapper have them."""

    config: ModelConfig
    compute_dtype: torch.dtype
    attention_mode: AttentionMode

    def __call__(
        self, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor | None, options: ForwardOptions, /
    ) -> Tensor: ...


def check_causal(config: ModelConfig) -> None:
    """Raise InputError if `config` does not describe a causal model."""
    if not config.causal:
        raise InputError(
            "this is an expert of the base model, which makes a video as a whole; a rollout takes a "
            "causal checkpoint (LingBot-World Fast or 2.0)"
        )


@dataclass(frozen=True)
class WorldMemory:
    """The memory settings of a World.

    camera_cache_bytes: the limit for all prompts' camera caches; None: no limit.
    graphs: whether to record forwards as CUDA graphs where possible.
    """

    place: KeyValuePlace = ON_DEVICE
    camera_cache_bytes: float | None = None
    graphs: bool = False


ALL_ON_DEVICE = WorldMemory()


@dataclass
class _Branch:
    """The caches and options of one branch of classifier-free guidance.

    number: 0 for the prompt, 1 for the negative prompt.
    history: the keys and values of the video so far.
    """

    number: int
    history: KeyValueCache
    cache: CameraCache | None
    options: ForwardOptions


@dataclass(frozen=True)
class _Chunk:
    """A chunk's inputs, except the latent.

    y: mask and image latent.
    prompts: embeddings, one per guidance branch.
    cached: whether forwards use the camera cache.
    """

    y: Tensor
    prompts: tuple[Tensor, ...]
    camera: Tensor | None
    cached: bool


class World:
    """A causal model with the KV cache of the video generated so far. A chunk's final keys and values come from the
    clean pass: one more forward, run when the next chunk begins.

    prompt: [1, L, D]; set it before the first chunk, replace it between chunks.
    negative: the same for the negative prompt of a guided World.
    """

    prompt: Tensor
    negative: Tensor

    def __init__(
        self,
        model: CausalModel,
        size: tuple[int, int],
        window: Window,
        *,
        chunk: int = CHUNK,
        guided: bool = False,
        device: torch.device | str,
        memory: WorldMemory = ALL_ON_DEVICE,
        sequence_parallel: SequenceParallel | None = None,
    ) -> None:
        """Allocate the caches for a video on `device`.

        size: the height and width of the latent.
        window: the attention window; its `frames` must not be 0.
        chunk: the number of latent frames generated together.
        guided: whether there is a negative prompt.
        memory: the caches' places and limits.
        sequence_parallel: processes that split the tokens.

        Raises InputError for a bidirectional model and an invalid window.
        """
        check_causal(model.config)
        self._model, self._device, self.chunk_frames = model, torch.device(device), chunk
        config, options = model.config, ForwardOptions()
        if sequence_parallel is not None:
            config, options["sequence_parallel"] = sequence_parallel.cache_config(config), sequence_parallel
        tokens = size[0] * size[1] // 4
        limit = memory.camera_cache_bytes and memory.camera_cache_bytes / (1 + guided)
        memory = replace(memory, camera_cache_bytes=limit)
        self._branches = [self._branch(number, config, tokens, window, memory, options) for number in range(1 + guided)]
        self._camera: tuple[Tensor, Tensor] | None = None  # the last camera, in host memory and on the device
        self._camera_read: Callable[[], None] = queued_on()
        self._made: tuple[_Chunk, Tensor] | None = None  # the previous chunk and its latent, until the clean pass
        self._pending: list[_Branch] = []  # the branches with a clean pass to run
        self._begun = self._incomplete = self._rehearsed = False

    def _branch(
        self, number: int, config: ModelConfig, tokens: int, held: Window, memory: WorldMemory, options: ForwardOptions
    ) -> _Branch:
        chunk, device, dtype = self.chunk_frames, self._device, self._model.compute_dtype
        history = KeyValueCache(config, tokens, held, chunk=chunk, device=device, dtype=dtype, place=memory.place)
        graphs = memory.graphs and device.type == "cuda" and history.is_read_directly
        graphs = graphs and may_be_recorded(self._model.attention_mode, device, config)
        cache = None if memory.camera_cache_bytes == 0 else CameraCache(memory.camera_cache_bytes, steady=graphs)
        own: ForwardOptions = {**options, "kv_cache": history, "times": {}}
        if graphs:
            own["graphs"] = ForwardGraphs()
            exact = memory.place.fp8 or self._model.attention_mode != "8bit"
            small = frames_bytes(config.dim, held.frames, chunk * tokens, dtype) <= FRAMES_BYTES
            if small and exact and attends_to_frames(device, dtype, config.head_dim):
                history.mask_empty_slots()
        return _Branch(number, history, cache, own)

    @torch.no_grad()
    def chunk(
        self,
        noise: Tensor,
        y: Tensor,
        camera: Tensor | None,
        schedule: Schedule,
        renoise: Renoise,
        callback: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate the next chunk and return its latent, float32 [1, 16, chunk, h, w]. Raises InputError if an earlier
        call was interrupted during a cache update.

        noise: [1, 16, chunk, h, w].
        y: [1, 20, chunk, h, w], the mask and the image latent.
        camera: [1, 384, chunk, h, w], or 448 for action models; None without camera layers.
        callback: called with an index after each forward; a guided pair counts as one.

        Pinned tensors must stay unchanged until the GPU has finished the chunk.
        """
        forwards, done = count(), callback or (lambda _index: None)
        if self._finish_last_chunk():
            done(next(forwards))
        chunk = self._begin(y, camera, cached=True)

        def predict(x: Tensor, timestep: int) -> Tensor:
            positive, *negative = (self._predict(branch, chunk, x, timestep) for branch in self._branches)
            done(next(forwards))
            return guide(positive, negative[0], schedule.guide_scale) if negative else positive

        x = upload(pinned(noise, self._device), self._device).float()
        clean = schedule.denoise(predict, x, lambda shape: pinned(renoise(shape), self._device))
        self._made, self._begun, self._pending = (chunk, clean.clone()), False, [*self._branches]
        return clean

    @property
    def graphs_recorded(self) -> bool:
        """Whether CUDA graphs have been recorded for every prompt."""
        graphs = [branch.options.get("graphs") for branch in self._branches]
        return all(isinstance(each, ForwardGraphs) and each.recorded > 0 for each in graphs)

    @torch.no_grad()
    def remember(self) -> None:
        """Run the last chunk's clean pass now, unless it has run. The clean pass is the forward that stores the
        finished chunk's keys and values. The first such call also records the CUDA graphs for later chunks."""
        made = self._made
        if self._finish_last_chunk() and made is not None and not self._rehearsed:
            self._rehearse(*made)

    @torch.no_grad()
    def replay(self, latent: Tensor, y: Tensor, camera: Tensor | None) -> None:
        """Add a finished chunk's keys and values to the KV cache. `latent` is [1, 16, chunk, h, w]; `y` contains the
        mask and the image latent."""
        self._finish_last_chunk()
        chunk = self._begin(y, camera, cached=False)  # no second forward would read the camera cache
        for branch in self._branches:
            self._store(branch, chunk, latent.to(self._device).float())
        self._begun = False

    def _rehearse(self, chunk: _Chunk, clean: Tensor) -> None:
        """Record the CUDA graphs that later chunks replay, for the current window and for a full one."""
        self._rehearsed = True
        branches = [branch for branch in self._branches if "graphs" in branch.options]
        for branch in branches:
            branch.history.begin()
        self._begun = bool(branches)
        for branch, full in product(branches, (False, True)):
            with branch.history.as_if_full() if full else nullcontext():
                for latent in (clean, clean.flip(-1)) if branch.history.window_state else ():
                    if branch.cache is not None:
                        branch.cache.clear_source()
                    for _ in range(2):  # the first forward fills the camera cache, the second reads it
                        self._predict(branch, chunk, latent, 0)
                    self._store(branch, chunk, latent)

    def _begin(self, y: Tensor, camera: Tensor | None, cached: bool) -> _Chunk:
        """Begin the next chunk, or begin an interrupted chunk again, and return the inputs of its forwards, with copies
        of `y` and `camera`. `cached`: whether the forwards use the camera cache."""
        for branch in self._branches:
            branch.history.begin(again=self._begun)
        self._begun = True
        y = y.clone() if y.device.type == self._device.type else upload(pinned(y, self._device), self._device)
        prompts = (self.prompt,) if len(self._branches) == 1 else (self.prompt, self.negative)
        return _Chunk(y, prompts, None if camera is None else self._upload_camera(camera), cached)

    def _predict(self, branch: _Branch, chunk: _Chunk, x: Tensor, timestep: int) -> Tensor:
        cache, timesteps = branch.cache if chunk.cached else None, torch.full((1,), timestep, device=self._device)
        options: ForwardOptions = {**branch.options, "camera_cache": cache, "timestep": timestep}
        x = torch.cat([x, chunk.y.to(x)], dim=1)
        return self._model(x, timesteps, chunk.prompts[branch.number], chunk.camera, options).float()

    def _upload_camera(self, camera: Tensor) -> Tensor:
        """Return a copy of `camera` on the world's device. If `camera` is on another device and equals the camera
        uploaded last, return that camera's copy."""
        if camera.device.type == self._device.type:
            return camera.clone()  # always: a comparison on a GPU waits for all queued kernels
        if self._camera is not None and same(self._camera[0], camera):
            return self._camera[1]
        self._camera_read()
        room = None if self._camera is None else self._camera[0]
        if room is None or room.shape != camera.shape:
            # from other memory, the upload waits for all earlier kernels
            room = torch.empty_like(camera, pin_memory=self._device.type == "cuda")
        self._camera = room.copy_(camera), upload(room, self._device)
        self._camera_read = queued_on(self._device)
        for branch in self._branches:
            if branch.cache is not None:
                branch.cache.clear_source()  # the cached keys and values of the prompt stay
        return self._camera[1]

    def _finish_last_chunk(self) -> bool:
        """Store the last chunk's keys and values, by a clean pass for each guidance branch. Return False if no clean
        pass was pending."""
        if self._incomplete:
            raise InputError(
                "the keys and values may be incomplete, because a cache update was interrupted; continue from a saved "
                "state in a new World"
            )
        if self._made is None:
            return False
        while self._pending:
            self._store(self._pending[0], *self._made)
            del self._pending[0]
        self._made = None
        return True

    def _store(self, branch: _Branch, chunk: _Chunk, clean: Tensor) -> None:
        """Store the keys and values of the latent `clean` in one branch, by a forward at timestep 0."""
        branch.history.keep = True
        try:
            self._predict(branch, chunk, clean, 0)
        except BaseException:
            self._incomplete = not branch.history.repeatable
            raise
        finally:
            branch.history.keep = False
