"""An expert as ComfyUI's model: conditioning in, prediction out, memory told beforehand."""

import logging

import comfy.conds
import comfy.context_windows
import comfy.model_base
import comfy.model_management
import comfy.supported_models
import comfy.utils
import torch
from torch.nn import functional as F

from ..model.cache import CameraCache
from ..model.dit import check_camera
from ..model.memory import activation_bytes
from .camera_cache import MODE, plan
from .model import CAMERA_CACHE, TIMESTEP, HostModel

CAMERA = "lingbot_camera"
"""Conditioning key of the camera: Pluecker map [1, 384, f, h, w] (448 channels for an action model)."""

DEFAULT_SHIFT = 5.0


class ExpertConfig(comfy.supported_models.WAN21_T2V):
    """What ComfyUI wants to know of an expert; not in its registry, so nothing else is ever taken for one."""

    sampling_settings = {"shift": DEFAULT_SHIFT}

    def __init__(self, model: HostModel):
        super().__init__({
            "image_model": "wan2.1", "model_type": "t2v", "in_dim": model.config.in_dim, "dim": model.config.dim,
            "num_layers": model.config.num_layers, "dtype": model.dtype, "disable_unet_model_creation": True,
        })  # fmt: skip
        self.manual_cast_dtype = model.dtype


class CameraCond(comfy.conds.CONDNoiseShape):
    """A camera that serves every row: prompt and negative prompt share one, instead of one each."""

    def process_cond(self, batch_size, area, **kwargs):
        whole = comfy.conds.CONDNoiseShape.process_cond(self, len(self.cond), area, **kwargs)
        return whole if len(self.cond) == 1 else super().process_cond(batch_size, area, **kwargs)

    def can_concat(self, other):
        if not super().can_concat(other):
            return False
        return len(self.cond) > 1 or self.cond is other.cond or torch.equal(self.cond, other.cond)

    def concat(self, others):
        return self.cond if len(self.cond) == 1 else super().concat(others)


class LingBotWorldExpert(comfy.model_base.WAN21):
    """Wan's conditioning (image latent, mask, text) with a camera, around the engine's transformer."""

    def __init__(self, model: HostModel, checkpoint=None):
        # WAN21's own constructor would build core's transformer.
        super(comfy.model_base.WAN21, self).__init__(ExpertConfig(model), comfy.model_base.ModelType.FLOW)
        self.image_to_video = True
        self.diffusion_model = model.requires_grad_(False).eval()
        self.checkpoint, self.last_memory_required, self.told_timestep = checkpoint, 0, None
        self.camera_cache = CameraCache()
        comfy.model_management.archive_model_dtypes(model)

    def _apply_model(self, x, t, c_concat=None, c_crossattn=None, control=None, transformer_options=None, **kwargs):
        # Read out here: torch.compile takes what is in transformer_options for constant.
        self.told_timestep = transformer_options.get(TIMESTEP)
        options = {**transformer_options, CAMERA_CACHE: self._planned_cache(x, transformer_options, kwargs)}
        return super()._apply_model(x, t, c_concat, c_crossattn, control, options, **kwargs)

    def _planned_cache(self, x: torch.Tensor, options: dict, conditioning: dict) -> CameraCache | None:
        if self.current_patcher is None or conditioning.get(CAMERA) is None:  # only a sampling run gives it back
            return None
        step = self._activation_bytes(x.shape)
        return plan(self.camera_cache, options.get(MODE, "auto"), self.current_patcher, x.shape[2:], step)

    def process_timestep(self, timestep, **kwargs):
        """The integer that the official code gives the model: the solver's, else the truncated sigma * 1000."""
        told = self.told_timestep
        return timestep.trunc() if told is None else torch.full_like(timestep, told)

    def extra_conds(self, **kwargs):
        out = super().extra_conds(**kwargs)
        if kwargs.get("cross_attn") is not None:
            out["c_crossattn"] = comfy.conds.CONDRegular(self._padded(kwargs["cross_attn"]))
        if kwargs.get(CAMERA) is not None:
            camera = kwargs[CAMERA]
            check_camera(camera, kwargs["noise"], self.diffusion_model.config)
            out[CAMERA] = CameraCond(camera.to(kwargs["device"], self.get_dtype_inference()))
        return out

    def _padded(self, text: torch.Tensor) -> torch.Tensor:
        """The prompt at the model's length, so that prompt and negative prompt run as one batch."""
        length = self.diffusion_model.config.text_len
        if text.shape[1] > length:
            logging.warning("the prompt has %d tokens; the model reads the first %d", text.shape[1], length)
        return F.pad(text[:, :length], (0, 0, 0, max(0, length - text.shape[1])))

    def resize_cond_for_context_window(self, cond_key, cond_value, window, x_in, device, retain_index_list=()):
        if cond_key == CAMERA:
            return comfy.context_windows.slice_cond(
                cond_value, window, x_in, device, temporal_dim=2, retain_index_list=list(retain_index_list)
            )
        return super().resize_cond_for_context_window(
            cond_key, cond_value, window, x_in, device, retain_index_list=list(retain_index_list)
        )

    def memory_required(self, input_shape, cond_shapes=None):
        """Bytes of a step at this latent [rows, 16, f, h, w] over the weights, with a camera."""
        self.last_memory_required = self._activation_bytes(input_shape)
        return self.last_memory_required

    def _activation_bytes(self, shape) -> int:
        rows, _, frames, height, width = shape
        config, dtype = self.diffusion_model.config, self.get_dtype_inference()
        return activation_bytes(config, frames, height, width, batch=rows, dtype=dtype)
