"""The engine's transformer with the arguments, patches and attention choice of ComfyUI's Wan model."""

import logging
from collections.abc import Mapping
from functools import lru_cache, partial

import comfy.ldm.modules.attention as comfy_attention
import comfy.model_management
import torch
from comfy.cli_args import args
from comfy.patcher_extension import WrapperExecutor, WrappersMP, get_all_wrappers
from torch import Tensor

from ...model.attention.choose_8bit import attend_8bit
from ...model.attention.exact import sdpa
from ...model.attention.fp8 import Operand, decode
from ...model.attention.streams import NOT_RECORDED, follows_stream
from ...model.config import ModelConfig
from ...model.dit import LingBotWorldModel
from ...model.layers.rope import AS_TRAINED, RopeScale
from .operations import HostOperations

TIMESTEP = "lingbot_world_timestep"
"""The transformer_options key of Wan's official integer timestep. Only this pack's solvers and rollouts set it."""
CAMERA_CACHE = "camera_cache"
"""The key in transformer_options of the engine's CameraCache. The value is None if the step has no cache."""
_LATENT = "lingbot_world_latent"
_ATTENTION_SWITCHES = (
    "use_sage_attention",
    "use_flash_attention",
    "use_ck_attention",
    "use_split_cross_attention",
    "use_quad_cross_attention",
)


def cross_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, options: Mapping) -> Tensor:
    """Return the attention of q, k and v, each [B, L, heads * D]. ComfyUI's kernel computes it if a command line switch
    or an override selects one, otherwise the engine's."""
    if "optimized_attention_override" in options or _by_switch():
        return comfy_attention.optimized_attention(q, k, v, heads=heads, transformer_options=options)
    return sdpa(q, k, v, heads, options)


def _by_switch() -> bool:
    return any(getattr(args, switch, False) for switch in _ATTENTION_SWITCHES)


@lru_cache
def attention_may_be_recorded(device: torch.device, heads: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether a CUDA graph may record the attention that ComfyUI's command line switches select."""
    if device.type != "cuda" or not _by_switch():
        return True
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = torch.randn(3, 1, 256, heads * head_dim, device=device, generator=generator).to(dtype)
    if follows_stream(lambda *given: comfy_attention.optimized_attention(*given[:3], heads=given[3]), q, k, v, heads):
        return True
    logging.warning(NOT_RECORDED, "ComfyUI's attention")
    return False


def self_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, options: Mapping) -> Tensor:
    """Return the attention of q, k and v, each [B, L, heads * D], with every `attn1_patch` in `options` applied."""
    return _patched(q, k, cross_attention(q, k, v, heads, options), heads, options)


def self_attention_8bit(q: Tensor, k: Tensor | Operand, v: Tensor | Operand, heads: int, options: Mapping) -> Tensor:
    """Return the 8-bit attention [B, L, heads * D] with every `attn1_patch` applied. `q` may be overwritten; for B = 1
    `k` and `v` may be Operands."""
    own = q.clone() if options.get("patches", {}).get("attn1_patch") else q  # `attend_8bit` may overwrite it
    return _patched(q, k, attend_8bit(own, k, v, heads, options), heads, options)


def _patched(q: Tensor, k: Tensor | Operand, out: Tensor, heads: int, options: Mapping) -> Tensor:
    patches = options.get("patches", {}).get("attn1_patch", ())
    if patches and isinstance(k, Operand):
        k = decode(k, q.dtype)[None]
    for patch in patches:
        split = {"q": q.unflatten(-1, (heads, -1)), "k": k.unflatten(-1, (heads, -1))}
        out = patch({"x": out, **split, "transformer_options": options})
    return out


class HostModel(LingBotWorldModel):
    """A `LingBotWorldModel` that ComfyUI can call as a diffusion model, with other nodes' wrappers and patches."""

    attention_8bit = staticmethod(self_attention_8bit)

    def __init__(self, config: ModelConfig, dtype: torch.dtype):
        super().__init__(
            config,
            operations=HostOperations,
            attention=self_attention,
            cross_attention=cross_attention,
            device="meta",
            dtype=dtype,
        )
        self.dtype = dtype

    def forward(
        self, x, timestep, context=None, clip_fea=None, time_dim_concat=None, transformer_options=None, **kwargs
    ):
        """Return the velocity [B, 16, f, h, w], computed inside the wrappers of other nodes. The order of arguments is
        WanModel's.

        x: noisy latent, mask and image latent [B, 36, f, h, w].
        timestep: [B] or [1], 0 to 1000.
        context: the prompts' embeddings [B or 1, L, D].
        kwargs: `lingbot_camera`, the Pluecker map or None.
        """
        options = {} if transformer_options is None else transformer_options
        return WrapperExecutor.new_class_executor(
            self._forward, self, get_all_wrappers(WrappersMP.DIFFUSION_MODEL, options)
        ).execute(x, timestep, context, clip_fea, time_dim_concat, options, **kwargs)

    def _forward(
        self,
        x,
        timestep,
        context,
        clip_fea=None,
        time_dim_concat=None,
        transformer_options=None,
        lingbot_camera=None,
        **kwargs,
    ):
        options = transformer_options
        options["grid_sizes"] = (x.shape[2], x.shape[3] // 2, x.shape[4] // 2)
        options["total_blocks"], options["block_type"], options[_LATENT] = len(self.blocks), "double", x
        options["block_index"] = 0  # torch.compile would trace a second block where the first one adds a key
        return super().forward(x, timestep, context, lingbot_camera, options)

    def out_of_memory(self, error):
        return comfy.model_management.is_oom(error)

    def rope_scale(self, options):
        """Return the scales and shifts of positions that the node ScaleROPE has set, else AS_TRAINED."""
        given = options.get("rope_options")
        if not given:
            return AS_TRAINED
        scales, shifts = (
            tuple(float(given.get(f"{what}_{axis}", default)) for axis in "tyx")
            for what, default in (("scale", 1.0), ("shift", 0.0))
        )
        return RopeScale(scales, shifts)

    def stream_is_private(self, options):
        return not options.get("patches") and not options.get("patches_replace")

    def run_block(self, index, block, x, e0, context, camera, rope, options):
        """Run block number `index` with the patches of other nodes. Return the residual stream [B, L, D]. Raise
        ComfyUI's interrupt exception if the user cancels."""
        # The check also splits torch.compile's graph, so the code compiled for one block serves all.
        comfy.model_management.throw_exception_if_processing_interrupted()
        options["block_index"] = index
        run = partial(_run_with_attn2_patches, block) if options.get("patches", {}).get("attn2_patch") else block
        replacements = options.get("patches_replace", {}).get("dit")
        replace = replacements.get(("double_block", index)) if replacements else None
        if replace is None:
            x = run(x, e0, context, camera, rope, options)
        else:
            given = {"img": x, "txt": context, "vec": e0, "pe": rope, "transformer_options": options}
            x = replace(given, {"original_block": partial(_run_original_block, run, camera)})["img"]
        for patch in options.get("patches", {}).get("double_block", ()):
            x = patch(
                {
                    "img": x,
                    "x": options[_LATENT],
                    "vec": e0,
                    "block_index": index,
                    "img_offset": 0,
                    "transformer_options": options,
                }
            )["img"]
        return x


def truncated_timesteps(sigmas: Tensor) -> Tensor:
    """Return the timesteps of `sigmas`: 1000 * sigma in float32, truncated to int64."""
    return (sigmas.detach().float() * 1000).long()


def _run_with_attn2_patches(block, x, e0, context, camera, rope, options, inplace=True):
    cross, update = block.cross_attn, block.cross_attn.update_

    x = x if inplace else x.clone()

    def update_and_patch(rows, *arguments):
        update(rows, *arguments)
        for row in rows:
            row.settle()
        for patch in options["patches"]["attn2_patch"]:
            x.copy_(patch({"x": x, "transformer_options": options}))

    cross.update_ = update_and_patch
    try:
        return block(x, e0, context, camera, rope, options, inplace=True)
    finally:
        del cross.update_


def _run_original_block(run, camera, arguments):
    """Run a block on behalf of a ComfyUI block replacement, which receives this function as "original_block". Return
    {"img": hidden states [B, L, D]}.

    run: the transformer block.
    camera: the block's camera input, or None.
    arguments: the block's other inputs, passed by the replacement.
    """
    x, e0, context, rope = (arguments[name] for name in ("img", "vec", "txt", "pe"))
    return {"img": run(x, e0, context, camera, rope, arguments["transformer_options"], inplace=False)}
