"""ComfyUI's BaseModel for an expert or a causal model, with the memory estimate of a step and the camera cache."""

import logging
import math
import threading
from contextlib import nullcontext
from typing import Literal, NamedTuple
from weakref import WeakSet

import comfy.conds
import comfy.context_windows
import comfy.model_base
import comfy.model_management as management
import comfy.supported_models
import comfy.utils
import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import InputError
from ...loaders import Checkpoint
from ...model.cache import CameraCache
from ...model.forward import check_camera
from ...model.graphs.forward import ForwardGraphs
from ...model.memory import activation_bytes, camera_cache_bytes
from ...options import CHUNKS, SHIFT, CameraCacheMode, Precision
from ...pipeline.geometry import PATCH
from ..prompt.notice import show_warning
from .patches import no_effect_warning
from .transformer import CAMERA_CACHE, TIMESTEP, HostModel

CAMERA = "lingbot_camera"
"""The key of the camera in a conditioning: a Pluecker map [1, 384, f, h, w], or [1, 448, f, h, w] with actions."""
CAMERA_CACHE_MODE = "lingbot_camera_cache"
"""The transformer_options key of the camera cache's mode: "auto" caches in free GPU memory, "gpu" unloads other models
to make room, "off" does not cache."""
BATCH_HEADROOM = 1.5
"""ComfyUI runs prompt and negative prompt as one batch only if this multiple of the batch's memory is free."""
_FREE_LOCK = threading.Lock()
"""A lock for ComfyUI's list of loaded models, because MultiGPU CFG Split runs a thread per device."""
CHUNK_INPUTS = "lingbot_world_chunk"
"""The transformer_options key of the current chunk's `ChunkInputs`. A chunk is a few latent frames that a causal model
generates together."""
ONLY_ROLLOUT = (
    "this is a causal model (LingBot-World Fast or 2.0), which makes a video chunk by chunk: connect it to "
    "LingBot-World Rollout; samplers take the experts of Load LingBot-World Experts"
)


class ChunkInputs(NamedTuple):
    """The model inputs for a chunk of f latent frames, which replace the inputs that ComfyUI has prepared.

    y: the image conditioning [1, 20, f, h, w].
    context: the prompt's embedding [1, L, D].
    camera: the Pluecker map [1, 384, f, h, w] (448 channels with actions).
    """

    y: Tensor
    context: Tensor
    camera: Tensor | None


Role = Literal["high", "low"]
"""The part of the noise schedule that an expert denoises: "high" for the noisy first steps, "low" for the last
steps."""


class _UnetConfig(dict):
    """ComfyUI's `unet_config`, a dict that some nodes read. Reading a missing key, such as one that only U-Nets have,
    raises InputError."""

    def __missing__(self, name):
        raise InputError(
            f"a node requests the {name} of a U-Net, but LingBot-World's models are transformers: remove it"
        )


class ExpertConfig(comfy.supported_models.WAN21_T2V):
    """ComfyUI's model configuration of an expert. It is not in ComfyUI's list of detectable models."""

    sampling_settings = {"shift": SHIFT}

    def __init__(self, model: HostModel):
        super().__init__(
            {
                "image_model": "wan2.1",
                "model_type": "t2v",
                "in_dim": model.config.in_dim,
                "dim": model.config.dim,
                "num_layers": model.config.num_layers,
                "dtype": model.dtype,
                "disable_unet_model_creation": True,
            }
        )
        self.unet_config = _UnetConfig(self.unet_config)
        self.manual_cast_dtype = model.dtype


class CameraCond(comfy.conds.CONDNoiseShape):
    """ComfyUI's camera conditioning. A camera of batch size 1 serves both prompts of a batch without repetition."""

    def process_cond(self, batch_size, area, **kwargs):
        rows = 1 if len(self.cond) == 1 else batch_size
        return super().process_cond(rows, area, **kwargs)

    def can_concat(self, other):
        if not super().can_concat(other):
            return False
        return len(self.cond) > 1 or self.cond is other.cond or torch.equal(self.cond, other.cond)

    def concat(self, others):
        return self.cond if len(self.cond) == 1 else super().concat(others)


class LingBotWorldExpert(comfy.model_base.WAN21):
    """ComfyUI's BaseModel for LingBot-World's experts and, despite the class's name, causal models. The engine's
    transformer replaces ComfyUI's, and a camera is an additional conditioning."""

    def __init__(self, model: HostModel, checkpoint: Checkpoint | None = None, role: Role | None = None):
        # WAN21's own constructor would build core's transformer.
        super(comfy.model_base.WAN21, self).__init__(ExpertConfig(model), comfy.model_base.ModelType.FLOW)
        self.image_to_video = True
        self.diffusion_model = model.requires_grad_(False).eval()
        self.checkpoint, self.role = checkpoint, role
        self.last_memory_required, self.solver_timestep = 0, None
        self.first_step_options: set[str] | None = None
        self.last_warning = ""
        self.key_value_bytes = 0  # bytes of the running rollout's cache on the device
        self.layer_elements: int | None = None  # elements of a layer's output in the prepared run
        self.camera_cache = CameraCache()
        self.rollout_caches: WeakSet[ForwardGraphs | CameraCache] = WeakSet()  # released with their world
        management.archive_model_dtypes(model)

    def _apply_model(self, x, t, c_concat=None, c_crossattn=None, control=None, transformer_options=None, **kwargs):
        # Read outside of the model, because torch.compile treats the values in transformer_options as constants.
        self.solver_timestep = transformer_options.get(TIMESTEP)
        chunk = transformer_options.get(CHUNK_INPUTS)
        if chunk is not None:
            c_concat, c_crossattn, kwargs[CAMERA] = chunk.y, self.pad_text(chunk.context), chunk.camera
        elif self.diffusion_model.config.causal:
            raise InputError(ONLY_ROLLOUT)
        elif c_concat is not None and c_concat.shape[2:] != x.shape[2:]:
            raise InputError(
                f"the sampler asks for a latent of {list(x.shape[2:])} in a run of {list(c_concat.shape[2:])}: choose "
                "a sampler that keeps the size (SamplerLCMUpscale: scale_ratio 1), and enlarge the finished video"
            )
        self._check_options(transformer_options)
        # Only around the model: before it ComfyUI queries the free memory, and would warn of each pinned page.
        held = self.current_patcher.hold_weights() if "graphs" in transformer_options else nullcontext()
        with held as weights:
            options = dict(transformer_options)
            if weights is not None:
                options["weights"] = weights
            else:
                options.pop("graphs", None)
                options[CAMERA_CACHE] = self._camera_cache(options, x.shape, kwargs.get(CAMERA) is not None)
            return super()._apply_model(x, t, c_concat, c_crossattn, control, options, **kwargs)

    def _camera_cache(self, options: dict, shape, has_camera: bool) -> CameraCache | None:
        """Return the camera cache for a step. Return None without a camera, without room, or outside of sampling."""
        if self.current_patcher is None or not has_camera:
            return None
        mode = options.get(CAMERA_CACHE_MODE, "auto")
        return self.camera_cache_for_step(mode, shape[2:], self._step_bytes(shape))

    def restart_option_check(self) -> None:
        """Forget the last sampling run's transformer_options and warning. The next run then warns anew of ineffective
        keys that appear after its first step."""
        self.first_step_options, self.last_warning = None, ""

    def _check_options(self, options: dict) -> None:
        self.first_step_options = self.first_step_options or set(options)
        text = no_effect_warning(options, self.first_step_options, len(self.diffusion_model.blocks))
        if text not in ("", self.last_warning):
            self.last_warning = text
            show_warning(text)

    def process_timestep(self, timestep, **kwargs):
        """Return the model's integer timestep, in the shape and dtype of `timestep`. If the solver has set a timestep
        for the step, return that. Otherwise truncate `timestep`, which is 1000 * sigma."""
        if self.solver_timestep is None:
            return timestep.trunc()
        return torch.full_like(timestep, self.solver_timestep)

    def extra_conds(self, **kwargs):
        out = super().extra_conds(**kwargs)
        if kwargs.get("cross_attn") is not None:
            out["c_crossattn"] = comfy.conds.CONDRegular(self.pad_text(kwargs["cross_attn"]))
        if kwargs.get(CAMERA) is not None:
            camera = kwargs[CAMERA]
            check_camera(camera, kwargs["noise"], self.diffusion_model.config)
            out[CAMERA] = CameraCond(camera.to(kwargs["device"], self.get_dtype_inference()))
        return out

    def pad_text(self, text: torch.Tensor) -> torch.Tensor:
        """Return an embedding [B, L, D] padded with zeros to the model's text length. A longer one is unchanged."""
        missing = self.diffusion_model.config.text_len - text.shape[1]
        return F.pad(text, (0, 0, 0, missing)) if missing > 0 else text

    def resize_cond_for_context_window(self, cond_key, cond_value, window, x_in, device, retain_index_list=()):
        if cond_key == CAMERA:
            return comfy.context_windows.slice_cond(
                cond_value, window, x_in, device, temporal_dim=2, retain_index_list=list(retain_index_list)
            )
        return super().resize_cond_for_context_window(
            cond_key, cond_value, window, x_in, device, retain_index_list=list(retain_index_list)
        )

    def memory_required(self, input_shape, cond_shapes=None, **later_versions_options):
        """Return the bytes that a step needs besides the weights, for a latent of `input_shape`. ComfyUI calls this
        method before each sampling run."""
        self.last_memory_required = self._step_bytes(input_shape) + self.key_value_bytes
        self.layer_elements = self.diffusion_model.config.dim * math.prod(input_shape[2:]) // PATCH**2
        return self.last_memory_required

    def _step_bytes(self, shape) -> int:
        rows, _, frames, height, width = shape
        config, dtype = self.diffusion_model.config, self.get_dtype_inference()
        if config.causal:
            rows, frames = 1, min(frames, CHUNKS[-1])
        return activation_bytes(config, frames, height, width, Precision(dtype), batch=rows)

    def camera_cache_for_step(
        self, mode: CameraCacheMode, latent_size: tuple[int, int, int], step_bytes: int
    ) -> CameraCache | None:
        """Return the camera cache for the next step, or None (and clear the cache) if the mode or the free memory
        forbids a cache.

        latent_size: (frames, height, width).
        step_bytes: the bytes that the step needs besides the weights.
        """
        cache, device = self.camera_cache, self.current_patcher.load_device
        in_main_memory = device.type in ("cpu", "mps")
        if mode == "off" or (mode == "auto" and in_main_memory) or cache.given_up:
            cache.clear()
            return None
        wanted = camera_cache_bytes(self.diffusion_model.config, *latent_size, dtype=self.diffusion_model.dtype)
        step = BATCH_HEADROOM * step_bytes + management.extra_reserved_memory()
        not_loaded = max(0, self.current_patcher.model_size() - self.current_patcher.loaded_size())
        needed = not_loaded + max(step, management.minimum_inference_memory())
        if mode == "gpu" and not cache.nbytes:
            with _FREE_LOCK:
                running = [loaded for loaded in management.current_loaded_models if loaded.currently_used]
                management.free_memory(wanted + needed, device, keep_loaded=running)
        room = management.get_free_memory(device) - needed
        if cache.limit_bytes is None:
            logging.info("camera cache: room for %.1f of %.1f GB", max(0.0, min(room, wanted)) / 1e9, wanted / 1e9)
        cache.limit_bytes = cache.nbytes + room
        # A filled cache stays as long as the step fits without headroom. An empty one needs room for a whole block.
        least = (1 - BATCH_HEADROOM) * step_bytes if cache.nbytes else wanted / self.diffusion_model.config.num_layers
        if room < least:
            cache.clear()
            return None
        return cache

    def free_caches(self) -> int:
        """Free the camera cache, and a causal model's caches and CUDA graphs. Return the number of freed bytes."""
        freed = self.camera_cache.clear() + sum(kept.clear() for kept in self.rollout_caches)
        if freed:
            management.soft_empty_cache()
        return freed


def is_causal(patcher) -> bool | None:
    """Whether a MODEL is a causal model; None if it is not a LingBot-World model."""
    return patcher.model.diffusion_model.config.causal if isinstance(patcher.model, LingBotWorldExpert) else None
