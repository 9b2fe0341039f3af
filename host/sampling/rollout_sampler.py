"""The sampler of a rollout: ComfyUI prepares one sampling run, in which the engine makes chunk after chunk."""

from collections.abc import Callable
from weakref import WeakKeyDictionary

import comfy.model_management as management
import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ...model.kv.place import HOST_SHARE
from ...options import KeyValueMode, Precision
from ...pipeline.chunk_loop import ChunkLoop
from ...pipeline.rollout_memory import Free, RolloutWork, choose_world
from ...pipeline.spec import RolloutSpec
from ...pipeline.world import CausalModel, Schedule, WorldMemory
from ..model.base_model import CHUNK_INPUTS, ChunkInputs
from ..model.transformer import CAMERA_CACHE, TIMESTEP, attention_may_be_recorded
from .guider import CallbackSampler

LATENT_CHANNELS = 16
BLOCK_HOOKS = ("patches", "patches_replace", "optimized_attention_override")
"""The keys of transformer_options with functions that run inside or between blocks. They prevent CUDA graphs."""


def run_with_model(
    patcher,
    prompt: list,
    loop: ChunkLoop,
    task: Callable[[CausalModel, torch.device], None],
    *,
    seed: int,
    held: int = 0,
) -> None:
    """Call `task(model, device)` inside a ComfyUI sampling run of one chunk. The MODEL that ComfyUI loads for the run
    stays loaded until `task` returns.

    prompt: the CONDITIONING that ComfyUI prepares with the model.
    loop: the source of the shape and sigmas of the sampling run.
    seed: the seed of the sampling run.
    held: the bytes that `task` keeps on the device besides the weights.
    """
    guider = comfy.samplers.CFGGuider(patcher)
    guider.inner_set_conds({"positive": prompt})
    chunk = torch.zeros(1, LATENT_CHANNELS, loop.chunk, *loop.size)
    sigmas = torch.tensor([*loop.schedule.sigmas, 0.0], dtype=torch.float32)
    patcher.model.key_value_bytes = held
    try:
        sampler = CallbackSampler(lambda *given: task(_PreparedModel(*given, loop.schedule), patcher.load_device))
        guider.sample(chunk, chunk, sampler, sigmas, disable_pbar=True, seed=seed)  # `task` delivers the real chunks
    finally:
        patcher.model.key_value_bytes = 0


class _PreparedModel:
    """A model prepared by ComfyUI, with the interface of the engine's `CausalModel`. A call returns the velocity."""

    def __init__(self, model_wrap, extra_args: dict, schedule: Schedule):
        model = model_wrap.inner_model
        self.config, self.compute_dtype = model.diffusion_model.config, model.get_dtype_inference()
        self.attention_mode = model.diffusion_model.attention_mode
        self._wrap, self._extra = model_wrap, extra_args
        self._sigmas = {0: 0.0, **dict(zip(schedule.timesteps, schedule.sigmas, strict=True))}
        self._cache: WeakKeyDictionary[object, tuple[Tensor, Tensor]] = WeakKeyDictionary()
        options = extra_args["model_options"].get("transformer_options", {})
        around = map(options.get("wrappers", {}).get, (WrappersMP.APPLY_MODEL, WrappersMP.DIFFUSION_MODEL))
        self._plain = not any((*around, *map(options.get, BLOCK_HOOKS)))

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor | None, options: dict, /) -> Tensor:
        latent, y = x[:, :LATENT_CHANNELS], x[:, LATENT_CHANNELS:]
        step = options["timestep"]
        sigma = torch.full((1,), self._sigmas[step], device=x.device)
        model, given = self._wrap.inner_model, self._extra["model_options"]
        history = options["kv_cache"]  # each prompt has its own
        context = self._cached(history, context, lambda: model.pad_text(context.to(x.device, self.compute_dtype)))
        if camera is not None:
            camera = self._cached(self, camera, lambda: camera.to(self.compute_dtype, copy=True))
        inner = {
            **given.get("transformer_options", {}),
            TIMESTEP: step,
            "kv_cache": history,
            CHUNK_INPUTS: ChunkInputs(y, context, camera),
        }
        sizes = self.config.num_heads, self.config.head_dim, self.compute_dtype
        if self._plain and "graphs" in options and attention_may_be_recorded(x.device, *sizes):
            inner |= {name: options[name] for name in ("graphs", CAMERA_CACHE)}
            model.rollout_caches |= {options["graphs"], *filter(None, [options[CAMERA_CACHE]])}
        model_options = {**given, "transformer_options": inner}
        denoised = self._wrap(latent, sigma, model_options=model_options, seed=self._extra.get("seed"))
        return (latent - denoised) / sigma if step else torch.zeros_like(latent)

    def _cached(self, key: object, source: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Return `make()`, cached for `key` until `source` is another object."""
        if key not in self._cache or self._cache[key][0] is not source:
            with torch.inference_mode(False):  # only then does torch count the writes to the tensor
                self._cache[key] = source, make()
        return self._cache[key][1]


def make_noise(seed: int, frames: int, size: tuple[int, int]) -> tuple[Tensor, Callable[[tuple[int, ...]], Tensor]]:
    """Return a video's noise [1, 16, frames, h, w] for a `size` (h, w), and a function that draws more noise."""
    generator = torch.Generator("cpu").manual_seed(seed)
    noise = torch.randn((1, LATENT_CHANNELS, frames, *size), generator=generator)
    return noise, lambda shape: torch.randn(shape, generator=generator)


def plan_memory(patcher, spec: RolloutSpec, mode: KeyValueMode, reserved: int = 0) -> tuple[WorldMemory, int]:
    """Return a causal video's memory plan, and the bytes needed on the device besides the weights, including `reserved`
    bytes for other uses. Raise InputError if keys and values do not fit."""
    model, device = patcher.model.diffusion_model, patcher.load_device
    precision = Precision(patcher.model.get_dtype_inference(), attention=model.attention_mode)
    work = RolloutWork(spec.config, spec.size, spec.chunk, spec.cache_window.frames, precision, spec.guided)
    room = free_bytes_on(device) - reserved
    host_room = int(HOST_SHARE * management.get_free_memory(torch.device("cpu")))
    memory = choose_world(work, mode, device, Free(room, host_room), patcher.model_size())
    held, recorded = work.key_values(memory.place), memory.graphs * work.recorded
    return memory, held.device + held.working + recorded + int(memory.camera_cache_bytes or 0) + reserved


def free_bytes_on(device: torch.device) -> int:
    """Return the bytes that would be free on a GPU if ComfyUI unloaded all its models there; 0 for other devices."""
    if device.type != "cuda":
        return 0
    there = (each for each in management.current_loaded_models if each.device == device and each.model is not None)
    free = management.get_free_memory(device) - management.extra_reserved_memory()
    return free + sum(each.model_loaded_memory() for each in there)
