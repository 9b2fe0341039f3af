"""Checks of a CONDITIONING: the keys that LingBot-World uses, and the shapes of their values."""

import math
from collections.abc import Collection, Iterable, Iterator

import comfy.samplers
import torch
from torch import Tensor

from ...errors import InputError
from ...model.config import ModelConfig
from ...model.forward import check_camera
from ...options import CELL
from ..model.base_model import CAMERA
from ..prompt import EVENTS
from ..prompt.notice import show_warning

ROLLOUT_KEYS = frozenset({"cross_attn", "hooks", EVENTS})
SAMPLER_KEYS = (ROLLOUT_KEYS - {EVENTS}) | {
    "concat_latent_image",
    "concat_mask",
    CAMERA,
    "area",
    "strength",
    "mask",
    "mask_strength",
    "set_area_to_bounds",
    "default",
    "start_percent",
    "end_percent",
    "clip_start_percent",
    "clip_end_percent",
}
"""The keys of a prompt's dict in a CONDITIONING that have an effect when an expert samples."""
COMFYUI_KEYS = frozenset({"model_conds", "uuid", "prompt_type"})
"""The keys that ComfyUI itself adds to a prompt's dict when it samples."""
_CONTROL, _REFERENCE, _SOUND = "the ControlNet", "the reference image", "the sound"
_CLIP_VISION = "the CLIP vision output (the start image reaches the model through the VAE)"
_IN_TIME, _VACE = "the frames that a node appends in time", "the frames of WanVaceToVideo"
UNREAD_KEYS = {
    "camera_conditions": "the camera of WanCameraImageToVideo (LingBot-World's camera nodes make one that it reads, "
    "through Apply LingBot-World Camera)",
    "clip_vision_output": _CLIP_VISION,
    "clip_vision_outputs": _CLIP_VISION,
    "clip_vision_output_ref": _CLIP_VISION,
    "unclip_conditioning": _CLIP_VISION,
    "control": _CONTROL,
    "control_apply_to_uncond": _CONTROL,
    "cross_attn_controlnet": _CONTROL,
    "vace_frames": _VACE,
    "vace_mask": _VACE,
    "vace_strength": _VACE,
    "reference_latents": _REFERENCE,
    "reference_latents_method": _REFERENCE,
    "ref_latent": _REFERENCE,
    "time_dim_concat": _IN_TIME,
    "time_dim_replace": _IN_TIME,
    "context_latents": "the reference latents of Bernini",
    "audio_embed": _SOUND,
    "audio_inject_scale": _SOUND,
    "ref_audio": _SOUND,
    "control_video": "the control video",
    "reference_motion": "the motion frames",
    "pose_video_latent": "the pose video",
    "face_video_pixels": "the face video",
    "gligen": "GLIGEN's boxes",
    EVENTS: "the events of a text node, which a Rollout reads",
    "noise_concat": "the latent that a node appends to the noise",
    "pooled_output": "the pooled output of a text encoder that is not umt5-xxl",
}
"""Keys of a CONDITIONING's dict that do not affect an expert, with descriptions. They are removed before sampling."""
_LIMITS = {
    "area": "an area",
    "mask": "a mask",
    "start_percent": "a timestep range",
    "end_percent": "a timestep range",
    "clip_start_percent": "a timestep range",
    "default": "a default",
    "strength": "a strength",
}
"""The keys that limit a prompt to a region, a timestep range or a strength. A rollout rejects such prompts."""
SIDES = {"positive": "the prompt", "negative": "the negative prompt"}


def unread_warning(entries: Iterable[dict], used: Collection[str]) -> str:
    """Return a warning about the keys of the prompts' dicts that are not in `used`, or an empty string."""
    keys = (
        key
        for entry in entries
        for key, value in entry.items()
        if key not in used and key not in COMFYUI_KEYS and (value is not None or key != "pooled_output")
    )
    unread = dict.fromkeys(UNREAD_KEYS.get(key, f'"{key}"') for key in keys)
    return f"LingBot-World does not read {'; nor '.join(unread)}." if unread else ""


def check_text(text: Tensor | None, config: ModelConfig) -> None:
    """Raise InputError if `text` is not an embedding [B, L, config.text_dim]."""
    if text is None or text.ndim != 3:
        raise InputError("a prompt has no text: connect a text node's output")
    if text.shape[2] != config.text_dim:
        raise InputError(
            f"the prompt has embeddings of {text.shape[2]} values, the model takes {config.text_dim}: "
            "encode it with the umt5-xxl text encoder"
        )


def reduce_for_rollout(name: str, prompt: list, config: ModelConfig) -> tuple[list, list[str]]:
    """Return the CONDITIONING with only the keys that a rollout uses, and warnings about its other keys. Raise
    InputError if a rollout cannot use `prompt`. `name` is the input's name."""
    if len(prompt) != 1 or prompt[0][0].shape[0] != 1:
        raise InputError(f"{name} holds several prompts; a rollout takes one: connect one text node's output")
    text, extras = prompt[0]
    check_text(text, config)
    if CAMERA in extras or "concat_latent_image" in extras or "concat_mask" in extras:
        raise InputError(
            f"{name} comes through WanImageToVideo or Apply LingBot-World Camera: connect the text node "
            "itself; start image and camera have inputs of their own"
        )
    parts = dict.fromkeys(words for key, words in _LIMITS.items() if key in extras)
    if parts:
        raise InputError(
            f"{name} has {' and '.join(parts)}; a rollout's prompt counts for all of its frames and "
            "steps: connect the text node itself, and another Rollout for another prompt"
        )
    kept = {key: value for key, value in extras.items() if key in ROLLOUT_KEYS and key != EVENTS}
    unread = unread_warning([extras], ROLLOUT_KEYS)
    return [[text, kept]], [unread] if unread else []


def events_by_chunk(prompt: list, config: ModelConfig, chunks: int, seconds: float) -> dict[int, Tensor]:
    """Return a prompt's timed changes (events) as embeddings [1, L, D], by the chunk that first uses them. `seconds` is
    a chunk's duration. Raise InputError if an event's times fit no chunk."""
    from ...text.events import changes_by_chunk, check_times  # not at the start of ComfyUI: it imports the model

    if EVENTS not in prompt[0][1]:
        return {}
    events, prompts = prompt[0][1][EVENTS]
    check_times(events, chunks, seconds)
    return {chunk: text[:, : config.text_len].float() for chunk, text in changes_by_chunk(prompts, chunks, seconds)}


def without_events(prompt: list) -> tuple[list, list[str]]:
    """Return the CONDITIONING without its timed prompt changes (events), and a note if there were any."""
    entries = [[text, {key: value for key, value in extras.items() if key != EVENTS}] for text, extras in prompt]
    had = any(EVENTS in extras for _, extras in prompt)
    return entries, ["The events of the text node have no effect in a walk."] if had else []


def check_entry(entry: dict, latent: Tensor, config: ModelConfig) -> None:
    """Raise InputError or CameraError if a prompt's dict does not fit the model or the latent [B, 16, f, h, w]."""
    if latent.ndim != 5:
        raise InputError(f"the latent is {list(latent.shape)}, of images; connect the video latent of WanImageToVideo")
    check_text(entry.get("cross_attn"), config)
    image, camera = entry.get("concat_latent_image"), entry.get(CAMERA)
    if image is not None:
        _check_start_image(image, entry.get("concat_mask"), latent)
    if camera is not None:
        check_camera(camera, latent, config)
    if image is not None and image.shape[3:] != latent.shape[3:]:
        show_warning(f"The latent is {_size(latent)}: the start image, prepared for {_size(image)}, is stretched.")


def _check_start_image(image: Tensor, mask: Tensor | None, latent: Tensor) -> None:
    if image.ndim != 5 or image.shape[1] != latent.shape[1] or (mask is not None and mask.ndim != 5):
        raise InputError(
            f"the start image is a latent {list(image.shape)} made for another model, expected [B, "
            f"{latent.shape[1]}, frames, height, width]: use WanImageToVideo"
        )
    if image.shape[2] != latent.shape[2]:
        raise InputError(
            f"the latent is {_size(latent)}, the start image was prepared for {_size(image)}: connect the latent of "
            "the WanImageToVideo that prepared the image"
        )


def _size(latent: Tensor) -> str:
    frames, height, width = latent.shape[2:]
    return f"{width * CELL}x{height * CELL} with {4 * frames - 3} frames"


def check_coverage(side: str, entries: list[dict], latent: Tensor, sigmas: Tensor, sampling) -> None:
    """Raise InputError if in some step no prompt applies to any part of the latent. Show a warning if the prompts leave
    a part out.

    side: "the prompt" or "the negative prompt", for messages.
    sigmas: the run's noise levels [steps + 1].
    sampling: the MODEL's model_sampling.
    """
    shares = list(_coverage(entries, latent, sigmas[:-1].tolist(), sampling))
    if 0.0 in shares:
        raise InputError(
            f"{side} predicts nothing in step {shares.index(0.0) + 1} of {len(shares)}: its mask is empty or its "
            "timestep range over; combine it (Conditioning Combine) with one that counts there"
        )
    if shares and min(shares) < 1:
        show_warning(
            f"{side[0].upper()}{side[1:]} counts for {min(shares):.0%} of the video, where its areas and "
            "masks are; nothing is predicted elsewhere: combine it with one for the rest."
        )


def _coverage(entries: list[dict], latent: Tensor, sigmas: list[float], sampling) -> Iterator[float]:
    """Yield for each sigma the fraction of the latent to which at least one prompt applies."""
    resolved, size = list(entries), latent.shape[2:]
    areas = [entry["area"] for entry in entries if "area" in entry]
    if any(area[0] == "percentage" and len(area) != 1 + 2 * len(size) for area in areas):
        raise InputError(
            "an area in percent of an image: use ConditioningSetAreaPercentageVideo, or Conditioning (Set Area)"
        )
    comfy.samplers.resolve_areas_and_cond_masks_multidim(resolved, size, "cpu")
    known: dict[tuple[int, ...], float] = {}
    times = [_sigma_range(entry, sampling) for entry in entries]
    for sigma in sigmas:
        active = tuple(n for n, (first, last) in enumerate(times) if last <= sigma <= first)
        if active not in known:
            places = torch.zeros(size, dtype=torch.bool)
            for number in active:
                places |= _covered_cells(resolved[number], size)
            known[active] = places.float().mean().item()
        yield known[active]


def _sigma_range(entry: dict, sampling) -> tuple[float, float]:
    first = max(entry.get("start_percent", 0.0), entry.get("clip_start_percent", 0.0))
    last = min(entry.get("end_percent", 1.0), entry.get("clip_end_percent", 1.0))
    begins, ends = (float(sampling.percent_to_sigma(percent)) for percent in (first, last))
    return math.inf if first == 0 else begins, -math.inf if last == 1 else ends


def _covered_cells(entry: dict, size: tuple[int, ...]) -> Tensor:
    places = torch.zeros(size, dtype=torch.bool)
    inside = tuple(slice(start, start + length) for start, length in _area(entry, size))
    places[inside] = bool(entry.get("strength", 1.0))
    if "mask" in entry:
        places &= (entry["mask"] * entry.get("mask_strength", 1.0)).ne(0).any(0)
    return places


def _area(entry: dict, size: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (start, length) of a prompt's area on each axis, in latent cells, cut at the latent's end."""
    if "area" not in entry:
        return [(0, length) for length in size]
    area = comfy.samplers.add_area_dims(list(entry["area"]), len(size))
    starts = area[len(size) :]
    lengths = [min(area[axis], size[axis] - starts[axis]) for axis in range(len(size))]
    if min(lengths) < 1 or lengths[-1] % 2 or lengths[-2] % 2:
        height, width = (CELL * length for length in area[len(size) - 2 : len(size)])
        raise InputError(
            f"a prompt's area begins at x {CELL * starts[-1]}, y {CELL * starts[-2]} and has {width}x{height} pixels "
            f"in a video of {CELL * size[-1]}x{CELL * size[-2]}: it has to lie inside, with sides in multiples of "
            f"{2 * CELL}"
        )
    return list(zip(starts, lengths, strict=True))
