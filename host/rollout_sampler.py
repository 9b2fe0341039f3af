"""The sampler of a rollout: the engine's `World` makes chunk after chunk, and ComfyUI runs each of its forwards.

ComfyUI prepares the run for one chunk of three latent frames. What changes from chunk to chunk travels with each
forward in transformer_options: the cache of keys and values, and a `ChunkInputs`, which LingBotWorldExpert gives to the
model. So LoRAs, hooks, wrappers and memory management are ComfyUI's own."""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import comfy.model_management as management
import comfy.samplers
import torch
from torch import Tensor

from ..errors import InputError
from ..model.attention_8bit import takes_operands
from ..model.kv_cache import HOST_SHARE, KeyValueBytes, KeyValuePlace, key_value_bytes, key_value_places
from ..model.memory import activation_bytes
from ..options import CHUNK, KeyValueMode
from ..pipeline.world import World
from ..sampling import FewStepSchedule
from .base_model import CHUNK_INPUTS, ChunkInputs
from .model import TIMESTEP

LATENT_CHANNELS = 16


class KeyValuePlan(NamedTuple):
    """Where a run's keys and values lie, and how many bytes that takes."""

    place: KeyValuePlace
    nbytes: KeyValueBytes

    @property
    def on_device(self) -> int:
        return self.nbytes.device + self.nbytes.working


class RolloutSampler(comfy.samplers.Sampler):
    """Runs `work(world)` with a World whose model is the prepared MODEL.

    size: height and width of the latent. held and sink: latent frames, see `world.held_frames`."""

    def __init__(
        self, work: Callable[[World], None], schedule: FewStepSchedule, size: tuple[int, int], held: tuple[int, int],
        place: KeyValuePlace,
    ):  # fmt: skip
        self.work, self.schedule, self.size, self.held, self.place = work, schedule, size, held, place

    def sample(
        self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None, denoise_mask=None, disable_pbar=False
    ):
        """What ComfyUI gets back are zeros: the chunks went to `work`."""
        model = _PreparedModel(model_wrap, extra_args, self.schedule)
        world = World(model, self.size, *self.held, device=noise.device, **self.place._asdict(), camera_cache_bytes=0)
        self.work(world)
        return torch.zeros_like(noise)


class _PreparedModel:
    """ComfyUI's prepared model, called as World calls the engine's: it gives the velocity of a forward.

    ComfyUI gives x - sigma * velocity."""

    def __init__(self, model_wrap, extra_args: dict, schedule: FewStepSchedule):
        model = model_wrap.inner_model
        self.config, self.compute_dtype = model.diffusion_model.config, model.get_dtype_inference()
        self._wrap, self._extra = model_wrap, extra_args
        self._sigmas = {0: 0.0, **dict(zip(schedule.timesteps, schedule.sigmas, strict=True))}

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor | None, options: dict, /) -> Tensor:
        latent, y = x[:, :LATENT_CHANNELS], x[:, LATENT_CHANNELS:]
        step = int(timestep)
        sigma = torch.full((1,), self._sigmas[step], device=x.device)
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


def plan_key_values(patcher, held: int, size: tuple[int, int], mode: KeyValueMode) -> KeyValuePlan:
    """Where the keys and values of `held` latent frames go: the best place that leaves room for all of the weights, or
    else the best one in host memory, or the one that leaves most. Raises InputError where not even that fits beside a
    forward."""
    config, dtype = patcher.model.diffusion_model.config, patcher.model.get_dtype_inference()
    device = patcher.load_device
    tokens, attention = size[0] * size[1] // 4, patcher.model.diffusion_model.attention_mode
    fp8 = takes_operands(attention, device, config)
    plans = [KeyValuePlan(place, key_value_bytes(config, held, tokens, dtype, place))
             for place in key_value_places(mode, fp8)]
    if device.type != "cuda":
        return plans[0]
    forward = activation_bytes(config, CHUNK, *size, batch=1, dtype=dtype) + management.extra_reserved_memory()
    room, host_room = _room(device), HOST_SHARE * management.get_free_memory(torch.device("cpu"))
    fitting = [plan for plan in plans if plan.nbytes.host <= host_room and plan.on_device + forward <= room]
    if not fitting:
        raise InputError(
            f"the GPU can have {room / 1e9:.1f} GB free and the host {host_room / 1e9:.1f} for pinning: too little for "
            f"keys and values of {held} latent frames with kv_cache {mode}; use a smaller window, a smaller video, or "
            "kv_cache auto"
        )
    whole = (plan for plan in fitting if plan.on_device + forward + patcher.model_size() <= room)
    away = (plan for plan in fitting if plan.place.on_host)
    return next(whole, None) or next(away, None) or min(fitting, key=attrgetter("on_device"))


def _room(device: torch.device) -> int:
    """What would be free on the device if ComfyUI unloaded everything there."""
    there = (each for each in management.current_loaded_models if each.device == device and each.model is not None)
    return management.get_free_memory(device) + sum(each.model_loaded_memory() for each in there)
