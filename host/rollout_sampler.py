"""The sampler of a rollout: the engine's loop makes chunk after chunk, and ComfyUI runs each of its forwards.

ComfyUI prepares the run for the latent frames of one chunk. What changes from chunk to chunk travels with each
forward in transformer_options: the cache of keys and values, and a `ChunkInputs`, which LingBotWorldExpert gives to the
model. So LoRAs, hooks, wrappers and memory management are ComfyUI's own."""

from collections.abc import Callable, Iterator

import comfy.model_management as management
import comfy.samplers
import torch
from torch import Tensor

from ..model.kv_cache import HOST_SHARE, KeyValuePlace
from ..options import KeyValueMode, Precision
from ..pipeline.chunk_loop import Chunk, ChunkCallback, ChunkLoop
from ..pipeline.rollout_memory import Free, RolloutWork, choose_place
from ..pipeline.spec import RolloutSpec
from ..pipeline.world import CausalModel, Renoise, Schedule, WorldMemory
from .base_model import CHUNK_INPUTS, ChunkInputs
from .model import TIMESTEP

LATENT_CHANNELS = 16


class RolloutSampler(comfy.samplers.Sampler):
    """Runs the engine's loop with the prepared MODEL: `work(chunks)` takes what `chunks(callback)` yields."""

    def __init__(
        self, loop: ChunkLoop, given: Iterator[Chunk], renoise: Renoise,
        work: Callable[[Callable[[ChunkCallback], Iterator[Tensor]]], None], place: KeyValuePlace,
    ):  # fmt: skip
        self.loop, self.given, self.renoise, self.work, self.place = loop, given, renoise, work, place

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        """What ComfyUI gets back are zeros: the chunks went to `work`."""
        model = _PreparedModel(model_wrap, extra_args, self.loop.schedule)
        memory = WorldMemory(self.place, camera_cache_bytes=0)
        self.work(lambda told: self.loop.run(
            model, self.given, self.renoise, device=noise.device, memory=memory, callback=told
        ))  # fmt: skip
        return torch.zeros_like(noise)


class WalkSampler(comfy.samplers.Sampler):
    """Gives `walk(model, device)` the prepared MODEL, for as long as it runs."""

    def __init__(self, schedule: Schedule, walk: Callable[[CausalModel, torch.device], None]):
        self.schedule, self.walk = schedule, walk

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        """What ComfyUI gets back are zeros."""
        self.walk(_PreparedModel(model_wrap, extra_args, self.schedule), noise.device)
        return torch.zeros_like(noise)


class _PreparedModel:
    """ComfyUI's prepared model, called as World calls the engine's: it gives the velocity of a forward.

    ComfyUI gives x - sigma * velocity."""

    def __init__(self, model_wrap, extra_args: dict, schedule: Schedule):
        model = model_wrap.inner_model
        self.config, self.compute_dtype = model.diffusion_model.config, model.get_dtype_inference()
        self.attention_mode = model.diffusion_model.attention_mode
        self._wrap, self._extra = model_wrap, extra_args
        self._sigmas = {0: 0.0, **dict(zip(schedule.timesteps, schedule.sigmas, strict=True))}
        self._camera: tuple[Tensor | None, Tensor | None] = None, None  # as it was given, and in the model's dtype

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor | None, options: dict, /) -> Tensor:
        latent, y = x[:, :LATENT_CHANNELS], x[:, LATENT_CHANNELS:]
        step = int(timestep)
        sigma = torch.full((1,), self._sigmas[step], device=x.device)
        if camera is not None and camera is not self._camera[0]:  # the camera cache knows one that comes back
            self._camera = camera, camera.to(self.compute_dtype)
        camera = None if camera is None else self._camera[1]
        given = self._extra["model_options"]
        inner = {
            **given.get("transformer_options", {}), TIMESTEP: step, "kv_cache": options["kv_cache"],
            CHUNK_INPUTS: ChunkInputs(y, context, camera),
        }  # fmt: skip
        model_options = {**given, "transformer_options": inner}
        denoised = self._wrap(latent, sigma, model_options=model_options, seed=self._extra.get("seed"))
        return (latent - denoised) / sigma if step else torch.zeros_like(latent)


def draws(seed: int, frames: int, size: tuple[int, int]) -> tuple[Tensor, Callable[[tuple[int, ...]], Tensor]]:
    """The video's noise [1, 16, frames, h, w] and what draws the noise of later steps, from one generator on the CPU:
    the same as `lingbot-world generate --seed`."""
    generator = torch.Generator("cpu").manual_seed(seed)
    noise = torch.randn((1, LATENT_CHANNELS, frames, *size), generator=generator)
    return noise, lambda shape: torch.randn(shape, generator=generator)


def plan_key_values(
    patcher, spec: RolloutSpec, mode: KeyValueMode, reserved: int = 0
) -> tuple[KeyValuePlace, int]:
    """Where a rollout's keys and values go, beside the weights, which ComfyUI manages, and `reserved` bytes; and what
    they and these take on the device. Raises InputError where they do not fit anywhere."""
    model, device = patcher.model.diffusion_model, patcher.load_device
    precision = Precision(patcher.model.get_dtype_inference(), attention=model.attention_mode)
    work = RolloutWork(spec.config, spec.size, spec.chunk, spec.held.frames, precision, spec.guided)
    room = room_on(device) - reserved
    host_room = int(HOST_SHARE * management.get_free_memory(torch.device("cpu")))
    place = choose_place(work, mode, device, Free(room, host_room), patcher.model_size())
    held = work.key_values(place)
    return place, held.device + held.working + reserved


def room_on(device: torch.device) -> int:
    """What would be free on a GPU if ComfyUI unloaded everything there; 0 where there is none."""
    if device.type != "cuda":
        return 0
    there = (each for each in management.current_loaded_models if each.device == device and each.model is not None)
    free = management.get_free_memory(device) - management.extra_reserved_memory()
    return free + sum(each.model_loaded_memory() for each in there)
