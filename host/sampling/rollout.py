"""The execution of the Rollout node, which makes a causal model's video chunk by chunk."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...camera.path import CameraPath
from ...errors import CameraError, InputError
from ...options import CELL, FPS, GUIDE_SCALE, STEPS, KeyValueMode
from ...pipeline.geometry import STEP
from ...pipeline.spec import RolloutRequest, RolloutSpec, plan_rollout
from ...pipeline.state import WorldState, prompts_of
from ...pipeline.world import CausalModel, check_causal
from ...vae.decoding import CONTEXT_FRAMES, NOT_FINITE
from ...vae.encoding import SETTLED
from ..checks.conditioning import events_by_chunk, reduce_for_rollout
from ..checks.graph import check_start, time_tile_warnings
from ..checks.latents import input_noise_warnings
from ..model.base_model import is_causal
from ..model.patcher import copies_on_other_devices
from ..model.patches import (
    uncalled_patch_warnings,
    unknown_addition_warnings,
    useless_node_warnings,
    without_step_additions,
)
from ..prompt.notice import show_warning
from .rollout_display import RolloutDisplay
from .rollout_sampler import LATENT_CHANNELS, make_noise, plan_memory, run_with_model

ONE_DEVICE = "MultiGPU CFG Split divides the guidance, which a rollout does without: it runs on one device."


@dataclass(frozen=True, kw_only=True)
class NodeRollout:
    """The checked inputs of a Rollout node.

    prompts: the positive and, with guidance, the negative CONDITIONING.
    start: a latent [1, 16, n, h, w] whose last frame begins the video.
    later: embeddings [1, L, D] of later prompts, keyed by the index of their first chunk.
    """

    patcher: object
    spec: RolloutSpec
    prompts: tuple[list, ...]
    notes: tuple[str, ...]
    start: Tensor | None = None
    later: dict[int, Tensor] = field(default_factory=dict)

    @property
    def contexts(self) -> list[Tensor]:
        """The embeddings [1, L, D] of the prompt and, with guidance, of the negative prompt."""
        return [prompt[0][0][:, : self.spec.config.text_len].float() for prompt in self.prompts]


class RolloutOutputs(NamedTuple):
    """The results of a rollout (a causal model's video).

    latent: the whole video's LATENT, including the earlier video that was continued.
    images: the new frames, an IMAGE [n, H, W, 3].
    """

    latent: dict
    images: Tensor
    state: WorldState


def prepare_rollout(
    patcher,
    prompts: tuple[list, list | None],
    request: RolloutRequest,
    *,
    image: Tensor | None = None,
    camera: CameraPath | None = None,
    state: WorldState | None = None,
    latent: dict | None = None,
) -> NodeRollout:
    """Check the inputs of a rollout (a causal model's video), and return them with the plan, before anything is loaded.
    Raise InputError or CameraError for invalid inputs.

    prompts: the positive and, for a model with guidance, the negative CONDITIONING.
    image: the start image, an IMAGE.
    latent: a LATENT whose last frame begins the video.
    """
    if is_causal(patcher) is None:
        raise InputError("model is not a LingBot-World model: connect Load LingBot-World Causal Model")
    config = patcher.model.diffusion_model.config
    check_causal(config)
    release = patcher.model.checkpoint.release
    patcher, notes = _remove_additions(patcher)
    positive, unread = reduce_for_rollout("positive", prompts[0], config)
    notes += unread
    if image is not None and len(image) > 1:
        notes.append(f"start_image holds {len(image)} images; the video begins with the first.")
    if camera is not None and config.control is None:
        raise CameraError(
            "this checkpoint has no camera layers that take a path: disconnect the camera, or load a "
            "LingBot-World model that takes one"
        )
    check_start(image is not None, latent is not None, state is not None)
    start = None if latent is None else _video_latent(latent["samples"])
    if latent is not None and start is not None:
        notes += input_noise_warnings("start_latent", start)
        notes += ["The mask of start_latent has no effect."] if latent.get("noise_mask") is not None else []
    frame = _first_frame(image, state) if start is None else torch.zeros(3, *(CELL * side for side in start.shape[3:]))
    spec = plan_rollout(config, release, request, camera, frame, state)
    later = events_by_chunk(prompts[0], config, spec.geometry.lat_f // spec.chunk, 4 * spec.chunk / FPS)
    used = [positive]
    if spec.guided:
        if prompts[1] is None:
            raise InputError(
                f"{release.name} is guided by a negative prompt: connect one to negative, or set guide_scale to 1"
            )
        negative, unread = reduce_for_rollout("negative", prompts[1], config)
        notes += unread
        used.append(negative)
        if not request.guide_scale:
            notes.append("At guidance scale 0 only the negative prompt has an effect, and the prompt has none.")
    elif prompts[1] is not None:
        notes.append(f"{release.name} takes no negative prompt: it has no effect here.")
    notes += [*_unread_setting_notes(request, release), *time_tile_warnings(spec.geometry.lat_f)]
    if image is not None and state is not None:
        notes.append("start_image has no effect: the video continues from the state.")
    if (given := positive[0][0].shape[1]) > config.text_len:
        notes.append(f"The prompt has {given} tokens; a rollout reads the first {config.text_len}.")
    notes += spec.notes
    return NodeRollout(patcher=patcher, spec=spec, prompts=tuple(used), notes=tuple(notes), start=start, later=later)


def _unread_setting_notes(request: RolloutRequest, release) -> list[str]:
    if release.guided:
        names = ["steps"] if request.indices is not None else []
    else:
        guided = {"guided_steps": (request.steps, STEPS), "guidance scale": (request.guide_scale, GUIDE_SCALE)}
        names = [name for name, (value, usual) in guided.items() if value != usual]
    return [f"{release.name} does not read {' and '.join(names)}: no effect here."] if names else []


def _remove_additions(patcher) -> tuple[Any, list[str]]:
    notes = [*uncalled_patch_warnings(patcher), *unknown_addition_warnings(patcher), *useless_node_warnings(patcher)]
    if copies_on_other_devices(patcher):  # MultiGPU CFG Split has made them
        notes.append(ONE_DEVICE)
        patcher = patcher.clone()
        patcher.remove_additional_models("multigpu")
    patcher, left_out = without_step_additions(patcher)
    patcher.model.restart_option_check()
    return patcher, [*notes, *left_out]


def run_rollout(run: NodeRollout, vae, seed: int, mode: KeyValueMode = "auto") -> RolloutOutputs:
    """Sample and decode the video with ComfyUI's VAE, with a preview after each chunk. Raise InputError if keys and
    values do not fit into memory."""
    if run.start is not None:
        run = replace(run, spec=replace(run.spec, frame=_as_frame(_decode_last(vae, run.start, 1))))
    spec = run.spec
    memory, on_device = plan_memory(run.patcher, spec, mode)
    image, (noise, renoise) = encode_image(run, vae), make_noise(seed, spec.geometry.lat_f, spec.size)
    latents: list[Tensor] = []

    def make(model: CausalModel, device: torch.device) -> None:
        chunks, given = (
            RolloutDisplay(run.patcher, spec, device),
            spec.chunks(image, noise, *run.contexts, later=run.later),
        )
        made = spec.loop.run(model, given, renoise, device=device, memory=memory, callback=chunks.forward_done)
        for number, latent in enumerate(made):
            chunks.add(number, latent)
        chunks.delivery.finish()
        latents.extend(chunks.delivery.latents)

    run_with_model(run.patcher, run.prompts[0], spec.loop, make, seed=seed, held=on_device)
    first, *negative = run.contexts
    prompts = [(chunk, "", context) for chunk, context in {0: first, **run.later}.items()]
    state = spec.state_after(torch.cat(latents, dim=2), *prompts_of(prompts, *negative))
    whole = run.patcher.model.process_latent_out(state.latent.clone())
    show_warning("" if whole.isfinite().all() else NOT_FINITE)
    images = _decode_last(vae, whole, spec.geometry.frames)
    return RolloutOutputs({"samples": whole}, images, state)


def _first_frame(image: Tensor | None, state: WorldState | None) -> Tensor:
    """Return the video's first frame [3, H, W], values -1 to 1, from `state` if there is one, else from `image`."""
    if image is not None:
        height, width = image.shape[1:3]
        if height % STEP or width % STEP:
            raise InputError(
                f"start_image is {width}x{height}, and both have to be multiples of {STEP}: put "
                "LingBot-World Prepare Image before it"
            )
    if state is None:
        return _as_frame(image)
    made = tuple(state.frame.shape[1:])
    if image is not None and (height, width) != made:
        raise InputError(
            f"the state is of {made[1]}x{made[0]}, start_image is {width}x{height}: disconnect the image, or resize it"
        )
    return state.frame


def _as_frame(image: Tensor) -> Tensor:
    """Return the first image of an IMAGE as float32 [3, H, W], values -1 to 1, on the CPU."""
    return image[0, ..., :3].permute(2, 0, 1).float().cpu() * 2 - 1


def _video_latent(samples: Tensor) -> Tensor:
    """Return `samples` unchanged. Raise InputError unless they are the latent [1, 16, f, h, w] of one video and not all
    zeros. The video's width and height must be multiples of STEP."""
    shape = list(samples.shape)
    if len(shape) != 5 or shape[:2] != [1, LATENT_CHANNELS] or 0 in shape:
        raise InputError(
            f"start_latent is {shape}, expected [1, {LATENT_CHANNELS}, frames, height, width]: connect "
            "the latent of one video, which the VAE of Wan 2.1 can decode"
        )
    height, width = (CELL * side for side in shape[3:])
    if height % STEP or width % STEP:
        raise InputError(f"start_latent is of {width}x{height}, and both have to be multiples of {STEP}")
    if not samples.any():
        raise InputError(
            "start_latent is empty, as WanImageToVideo's latent is: connect the image to start_image, or a video's "
            "latent, from VAE Encode or a sampler"
        )
    return samples


def encode_image(run: NodeRollout, vae) -> Tensor:
    """Return the normalized latent [1, 16, n, h, w] of the start image and following grey frames. Raise InputError for
    another model's VAE."""
    spec = run.spec
    frames = 4 * min(spec.latent_frames_before + spec.geometry.lat_f, SETTLED) - 3
    pixels = torch.full((frames, *spec.frame.shape[1:], 3), 0.5)
    pixels[0] = (spec.frame.permute(1, 2, 0) + 1) / 2
    latent = vae.encode(pixels).float().cpu()
    if latent.shape[1:2] != (LATENT_CHANNELS,) or latent.ndim != 5:
        raise InputError(
            f"vae makes a latent {list(latent.shape)}, expected [1, {LATENT_CHANNELS}, frames, height, width]: connect "
            "Load LingBot-World VAE, or the VAE of Wan 2.1"
        )
    return run.patcher.model.process_latent_in(latent)


def _decode_last(vae, latent: Tensor, frames: int) -> Tensor:
    """Decode the last frames of a video's latent to an IMAGE [frames, H, W, 3]."""
    images = vae.decode(latent[:, :, -((frames + 3) // 4 + CONTEXT_FRAMES) :])
    return images.reshape(-1, *images.shape[-3:])[-frames:]
