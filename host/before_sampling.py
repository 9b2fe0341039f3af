"""What can be said of a sampling run before any weight is loaded, for every sampler: ours and ComfyUI's own.

A wrapper of ComfyUI's `prepare_sampling`, which every expert's MODEL carries. It refuses sizes that cannot be sampled,
and says on the running node what of the conditioning an expert does not read."""

import torch
from comfy.patcher_extension import WrappersMP, add_wrapper_with_key

from ..errors import InputError
from ..model.config import ModelConfig
from ..model.dit import check_camera
from ..options import CELL
from .base_model import CAMERA
from .notice import show_warning

KEY = "lingbot_world"

NOT_READ = {
    "camera_conditions": "the camera of WanCameraImageToVideo (LingBot-World's camera nodes make one that it reads, "
    "through Apply LingBot-World Camera)",
    "clip_vision_output": "the CLIP vision output (the start image reaches the model through the VAE)",
    "control": "the ControlNet",
    "vace_frames": "the frames of WanVaceToVideo",
    "reference_latents": "the reference image",
    "time_dim_concat": "the frames that a node appends in time",
    "context_latents": "the reference latents of Bernini",
    "audio_embed": "the sound",
    "control_video": "the control video",
    "reference_motion": "the motion frames",
    "pose_video_latent": "the pose video",
    "face_video_pixels": "the face video",
    "gligen": "GLIGEN's boxes",
}
"""Keys of a conditioning that other models read, and LingBot-World's have no layers for."""

PATCHES, REPLACED = {"attn1_patch", "attn2_patch", "double_block"}, {"dit"}
"""What ComfyUI's Wan calls of the patches that nodes put on a MODEL, and LingBot-World's model too."""


def add_checks(patcher) -> None:
    """Have a MODEL's runs checked. Clones of the MODEL take it along."""
    options = patcher.model_options
    add_wrapper_with_key(WrappersMP.PREPARE_SAMPLING, KEY, _checked, options, is_model_options=True)


def _checked(executor, patcher, noise_shape, conds, *args, **kwargs):
    entries = [entry for entries in conds.values() for entry in entries]
    config = patcher.model.diffusion_model.config
    if not config.causal:
        for entry in entries:
            check_sizes(entry, torch.empty(tuple(noise_shape), device="meta"), config)
    ignored = list(dict.fromkeys(words for entry in entries for key, words in NOT_READ.items() if _given(entry, key)))
    show_warning(f"LingBot-World does not read {'; nor '.join(ignored)}." if ignored else "")
    patches = patches_not_called(patcher.model_options.get("transformer_options", {}))
    if patches:
        show_warning(
            f"A node on the model patches {', '.join(patches)}, which neither LingBot-World nor ComfyUI's Wan has: it "
            "changes nothing."
        )
    return executor(patcher, noise_shape, conds, *args, **kwargs)


def check_sizes(entry: dict, latent: torch.Tensor, config: ModelConfig) -> None:
    """Refuse a start image and a camera that are not made for the latent [B, 16, f, h, w]. An image of another height
    or width is stretched by ComfyUI, which is only said.

    Raises InputError, CameraError."""
    if latent.ndim != 5:
        raise InputError(f"the latent is {list(latent.shape)}, of images; connect the video latent of WanImageToVideo")
    image, camera = entry.get("concat_latent_image"), entry.get(CAMERA)
    if image is not None and image.shape[2] != latent.shape[2]:
        raise InputError(
            f"the latent is {_video(latent)}, the start image was prepared for {_video(image)}: connect the latent of "
            "the WanImageToVideo that prepared the image"
        )
    if camera is not None:
        check_camera(camera, latent, config)
    if image is not None and image.shape[3:] != latent.shape[3:]:
        show_warning(f"The latent is {_video(latent)}: the start image, prepared for {_video(image)}, is stretched.")


def patches_not_called(options: dict) -> list[str]:
    """Names of the patches in transformer_options that are for models of another kind."""
    added, replaced = (options.get(kind, {}).keys() for kind in ("patches", "patches_replace"))
    return sorted((added - PATCHES) | (replaced - REPLACED))


def _video(latent: torch.Tensor) -> str:
    frames, height, width = latent.shape[2:]
    return f"{width * CELL}x{height * CELL} with {4 * frames - 3} frames"


def _given(entry: dict, key: str) -> bool:
    return entry.get(key) is not None
