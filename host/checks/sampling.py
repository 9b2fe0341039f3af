"""Checks of a sampling run before any weight is loaded, for this pack's samplers and ComfyUI's."""

import math
from collections.abc import Iterator
from itertools import chain

import torch
from comfy.patcher_extension import WrappersMP, add_wrapper_with_key
from torch import Tensor

from ...errors import InputError, LingBotError
from ...options import BOUNDARY
from ...sampling import is_high_noise
from ...vae.decoding import NOT_FINITE
from ..model.base_model import CAMERA, ONLY_ROLLOUT
from ..model.patches import (
    KEY,
    check_sampling,
    one_expert_warning,
    swapped_lora_warnings,
    uncalled_patch_warnings,
    unknown_addition_warnings,
    useless_node_warnings,
)
from ..model.transformer import truncated_timesteps
from ..prompt.notice import show_note, show_warning
from .conditioning import SAMPLER_KEYS, SIDES, UNREAD_KEYS, check_coverage, check_entry, unread_warning
from .exclusive import check_caches, check_windows
from .failures import raise_node_error
from .graph import other_schedule_warnings, time_tile_warnings
from .latents import check_finite, last_noise_level, leftover_noise_warnings, noise_level_warning, record_run
from .text import text_node_warnings
from .unused import idle_range_warnings, ineffective_guidance_warning, ineffective_prompt_warning

FULL_NOISE = 0.9985
"""The smallest first sigma that counts as full noise. UniPC begins a little below 1."""
CONNECT = (
    "Connect Text Encode to WanImageToVideo, its outputs to Apply LingBot-World Camera (if there is a camera), and "
    "that node's outputs to this one."
)


def add_checks(patcher) -> None:
    """Add a wrapper to a MODEL in place. At each sampling run of the MODEL or a later clone, the wrapper checks latent,
    sigmas, conditioning and patches. Invalid inputs raise InputError."""
    options = patcher.model_options
    add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, _sample_checked, options, is_model_options=True)


def _sample_checked(executor, noise, latent_image, sampler, sigmas, denoise_mask=None, *args, **kwargs):
    guider, solver = executor.class_obj, _wrapped_sampler(sampler)
    causal = guider.model_patcher.model.diffusion_model.config.causal
    if causal and not getattr(sampler, "may_run_causal", False):
        raise InputError(ONLY_ROLLOUT)
    image_and_camera = [
        entry[key]
        for entry in guider.conds.get("positive", ())
        for key in ("concat_latent_image", CAMERA)
        if entry.get(key) is not None
    ]
    if not causal:  # a rollout is checked when it is planned
        _check_run(guider, noise, latent_image, sampler, sigmas, denoise_mask)
        show_warning(*_sigma_warnings(solver, sigmas, noise, latent_image, guider, image_and_camera))
        show_warning(_solver_warning(solver, sigmas), *_latent_warnings(noise, latent_image, sigmas, denoise_mask))
        guider.conds = {  # without the keys of other models, so that no ControlNet runs in vain or fails
            side: [{key: value for key, value in entry.items() if key not in UNREAD_KEYS} for entry in entries]
            for side, entries in guider.conds.items()
        }
    try:
        # A copy: ComfyUI's uni_pc writes into the sigmas, which a node may keep for its next run.
        made = executor(noise, latent_image, sampler, sigmas.clone(), denoise_mask, *args, **kwargs)
        record_run(made, last_noise_level(solver, sigmas)[0], image_and_camera)
        show_warning("" if len(sigmas) < 2 or made.isfinite().all() else NOT_FINITE)
        return made
    except LingBotError:
        raise
    except Exception as error:
        raise_node_error(error)
        raise


def _check_run(guider, noise: Tensor, latent_image: Tensor, sampler, sigmas: Tensor, mask: Tensor | None) -> None:
    show_warning("")
    check_finite(guider, sigmas, latent_image)
    latent = torch.empty(noise.shape, device="meta")
    _check_conditioning(guider, latent, sigmas)
    _check_model(guider, latent, sigmas, sampler, masked=mask is not None)


def _latent_warnings(noise: Tensor, latent: Tensor, sigmas: Tensor, mask: Tensor | None) -> Iterator[str]:
    if mask is None and noise.any() and latent.any() and float(sigmas[0]) >= FULL_NOISE:
        yield (
            "The latent holds a video, of which a run from full noise keeps nothing: lower denoise to keep some of it, "
            "or connect the latent of WanImageToVideo."
        )
    if mask is not None and not mask.any():
        yield "The latent's mask keeps all of it: this run changes nothing. Paint the areas to change."
    if mask is not None and not latent.any() and (mask < 1).any():
        yield (
            "The latent is empty, and its mask keeps parts of it, which stay empty: connect the latent of a video, "
            "from VAE Encode, or take the mask away."
        )


def _sigma_warnings(
    solver, sigmas: Tensor, noise: Tensor, latent: Tensor, guider, image_and_camera: list[Tensor]
) -> Iterator[str]:
    if len(sigmas) < 2:
        yield "There is no step: a run needs two sigmas or more."
        return
    if bool((sigmas.diff() > 0).any()):
        yield "The sigmas rise, as after Flip Sigmas: such steps add noise instead of removing it."
    elif float(sigmas[0]) > 1.001:
        yield (f"The sigmas begin at {float(sigmas[0]):.4g}, and LingBot-World's at 1: take LingBot-World Sigmas.")
    else:
        role = guider.model_patcher.model.role
        yield from leftover_noise_warnings(solver, sigmas, assume_last=hasattr(guider, "low") or role == "low")
        yield from filter(None, [noise_level_warning(sigmas, noise, latent, image_and_camera)])


def _wrapped_sampler(sampler):
    return getattr(sampler, "sampler", sampler)


def _solver_warning(sampler, sigmas: Tensor) -> str:
    solver, first = getattr(sampler, "solver", None), float(sigmas[0]) if len(sigmas) else 0.0
    if solver is None or sampler.timesteps is not None or not FULL_NOISE <= first <= 1:
        return ""
    other = "dpmpp" if first == 1 else "unipc"
    if other == solver:
        return ""
    return (
        f"The sigmas begin at {first:.4g}, as {other}'s do, and the solver is {solver}: make the sigmas with "
        f"LingBot-World Sigmas, with its solver at {solver}."
    )


def _check_conditioning(guider, latent: Tensor, sigmas: Tensor) -> None:
    patcher, used = guider.model_patcher, guider.conds
    asked = guider.model_options.get("disable_cfg1_optimization") or used.keys() != {"positive", "negative"}
    scales = guider.cfg, getattr(guider, "low", guider).cfg
    if not asked and all(math.isclose(scale, 1) for scale in scales):  # the negative prompt is left out
        used = {"positive": used["positive"]}
        show_warning(ineffective_guidance_warning(patcher))
    if used.keys() == {"positive", "negative"}:
        show_warning(ineffective_prompt_warning(patcher, scales))
    config = patcher.model.diffusion_model.config
    for side, entries in used.items():
        for entry in entries:
            check_entry(entry, latent, config)
        check_coverage(SIDES.get(side, side), entries, latent, sigmas, patcher.get_model_object("model_sampling"))
    show_warning(*text_node_warnings(), *other_schedule_warnings(), *time_tile_warnings(latent.shape[2]))
    show_warning(unread_warning(chain.from_iterable(guider.conds.values()), SAMPLER_KEYS))
    texts = [entry["cross_attn"] for entries in used.values() for entry in entries]
    if len(used) == len(texts) == 2 and texts[0].device == texts[1].device and torch.equal(*texts):
        show_warning(
            "The prompt and the negative prompt are the same text: guidance changes nothing. Connect the "
            "negative output of the text node."
        )
    _check_both_sides("start image", used, "concat_latent_image", "WanImageToVideo")
    if config.control is not None:
        _check_both_sides("camera", used, CAMERA, "Apply LingBot-World Camera")


def _check_both_sides(what: str, used: dict[str, list[dict]], key: str, node: str) -> None:
    without = [side for side, entries in used.items() if not all(entry.get(key) is not None for entry in entries)]
    show_warning(_one_sided_warning(what, used, without, node), _unlike_warning(what, used, key, node))
    if len(without) == len(used):
        if key == CAMERA:
            show_note("No camera is connected: the model chooses how it moves.")
        else:
            sides = " and ".join(without)
            show_warning(f"No start image in {sides}: the video will not begin with your image. {CONNECT}")


def _one_sided_warning(what: str, used: dict, without: list[str], node: str) -> str:
    if not 0 < len(without) < len(used):
        return ""
    has, lacks = (" and ".join(side for side in used if (side in without) is lacking) for lacking in (False, True))
    return (
        f"The {what} is in {has} only, not in {lacks}: guidance would amplify the {what} itself. Connect both "
        f"outputs of the same {node}."
    )


def _unlike_warning(what: str, used: dict[str, list[dict]], key: str, node: str) -> str:
    positive, negative = ([entry[key] for entry in used.get(side, ()) if entry.get(key) is not None] for side in SIDES)
    if not positive or all(any(_equal(each, other) for other in positive) for each in negative):
        return ""
    return (
        f"The {what} of negative is another one than that of positive: guidance would amplify their difference. "
        f"Connect both outputs of the same {node}."
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and one.device == other.device and torch.equal(one, other))


def _check_model(guider, latent: Tensor, sigmas: Tensor, sampler, masked: bool) -> None:
    patcher, low = guider.model_patcher, getattr(guider, "low", None)
    check_sampling(patcher)
    patcher.model.restart_option_check()
    both = (patcher,) if low is None else (patcher, low.model_patcher)
    check_windows(both, latent.shape)
    check_caches(both, _wrapped_sampler(sampler))
    loras = (words for each in both for words in swapped_lora_warnings(each))
    ranges = (words for each in both for words in idle_range_warnings(each, sigmas))
    show_warning(
        *uncalled_patch_warnings(patcher),
        *unknown_addition_warnings(patcher),
        *useless_node_warnings(patcher),
        *loras,
        *ranges,
    )
    if "denoise_mask_function" in patcher.model_options and not masked:
        show_warning("Differential Diffusion changes nothing: the latent has no mask.")
    if low is not None:
        show_warning(one_expert_warning(patcher, low.model_patcher))
    elif not getattr(guider, "switches", False):
        show_warning(_wrong_expert_warning(patcher.model.role, sigmas))


def _wrong_expert_warning(role: str | None, sigmas: Tensor) -> str:
    high = [is_high_noise(timestep, BOUNDARY) for timestep in truncated_timesteps(sigmas)[:-1].tolist()]
    if role is None or not high:
        return ""
    other = "low" if role == "high" else "high"
    wrong = sum(step is not (role == "high") for step in high)
    if wrong == len(high):
        return (
            f"Every step of this run is the {other}-noise expert's, and this is the {role}-noise one: are the experts "
            "swapped?"
        )
    if wrong:
        return (
            f"{wrong} of {len(high)} steps are the {other}-noise expert's, which predicts "
            f"{'below' if role == 'high' else 'above'} noise level {BOUNDARY}: give them to it (KSampler "
            "Advanced), or use LingBot-World Sampler, which changes by itself."
        )
    if role == "high" and float(sigmas[-1]) == 0:
        return (
            "The high-noise expert ends the video without the low-noise one: turn on return_with_leftover_noise, "
            "and continue with the low-noise expert."
        )
    return ""
