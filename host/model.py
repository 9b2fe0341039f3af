"""The engine's transformer behind the interface and the hooks that ComfyUI and other packs expect of Wan."""


import comfy.model_management
import torch
from comfy.patcher_extension import WrapperExecutor, WrappersMP, get_all_wrappers
from torch import Tensor

from ..model.config import ModelConfig
from ..model.dit import LingBotWorldModel
from .attention import cross_attention, self_attention
from .operations import HostOperations

TIMESTEP = "lingbot_world_timestep"
"""In transformer_options: the integer timestep of this step, from solvers that know it better than sigma does."""

CAMERA_CACHE = "camera_cache"
"""In transformer_options: the engine's CameraCache, or None."""

_LATENT = "lingbot_world_latent"


class HostModel(LingBotWorldModel):
    """`LingBotWorldModel` as ComfyUI calls a diffusion model, with wrappers, block and attention patches."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype):
        super().__init__(
            config, operations=HostOperations, attention=self_attention, cross_attention=cross_attention,
            device="meta", dtype=dtype,
        )  # fmt: skip
        self.dtype = dtype

    def forward(
        self, x, timestep, context=None, clip_fea=None, time_dim_concat=None, transformer_options=None, **kwargs
    ):
        """Velocity [B, 16, F, H, W]. Arguments in the order of core's WanModel, for wrappers that go by position."""
        options = {} if transformer_options is None else transformer_options
        return WrapperExecutor.new_class_executor(
            self._forward, self, get_all_wrappers(WrappersMP.DIFFUSION_MODEL, options)
        ).execute(x, timestep, context, clip_fea, time_dim_concat, options, **kwargs)

    def _forward(
        self, x, timestep, context, clip_fea=None, time_dim_concat=None, transformer_options=None, lingbot_camera=None,
        **kwargs,
    ):  # fmt: skip
        options = transformer_options
        options["grid_sizes"] = (x.shape[2], x.shape[3] // 2, x.shape[4] // 2)
        options["total_blocks"], options["block_type"], options[_LATENT] = len(self.blocks), "double", x
        return super().forward(x, timestep, context, lingbot_camera, options)

    def out_of_memory(self, error):
        return comfy.model_management.is_oom(error)

    def run_block(self, index, block, x, e0, context, camera, rope, options):
        comfy.model_management.throw_exception_if_processing_interrupted()
        options["block_index"] = index
        run = _with_attn2_patches if options.get("patches", {}).get("attn2_patch") else _plain
        replace = options.get("patches_replace", {}).get("dit", {}).get(("double_block", index))
        if replace is None:
            x = run(block, x, e0, context, camera, rope, options)
        else:
            x = _replaced(replace, run, block, x, e0, context, camera, rope, options)
        for patch in options.get("patches", {}).get("double_block", ()):
            x = patch({"img": x, "x": options[_LATENT], "vec": e0, "block_index": index, "img_offset": 0,
                       "transformer_options": options})["img"]  # fmt: skip
        return x


def truncated_timesteps(sigmas: Tensor) -> Tensor:
    """sigma * 1000 as int64, truncated in float32: UniPC's integers exactly, DPM++'s sometimes one off."""
    return (sigmas.detach().float() * 1000).long()


def _plain(block, x, e0, context, camera, rope, options, inplace=True):
    return block(x, e0, context, camera, rope, options, inplace=inplace)


def _with_attn2_patches(block, x, e0, context, camera, rope, options, inplace=True):
    """A block whose residual stream passes through every `attn2_patch` between cross-attention and feed-forward."""
    cross, update = block.cross_attn, block.cross_attn.update_

    def patched(stream, *arguments):
        update(stream, *arguments)
        for patch in options["patches"]["attn2_patch"]:
            stream.copy_(patch({"x": stream, "transformer_options": options}))

    cross.update_ = patched
    try:
        return block(x, e0, context, camera, rope, options, inplace=inplace)
    finally:
        del cross.update_


def _replaced(replace, run, block, x, e0, context, camera, rope, options):
    def original(given):
        img = run(block, given["img"], given["vec"], given["txt"], camera, given["pe"], given["transformer_options"],
                  inplace=False)  # fmt: skip
        return {"img": img}

    given = {"img": x, "txt": context, "vec": e0, "pe": rope, "transformer_options": options}
    return replace(given, {"original_block": original})["img"]
