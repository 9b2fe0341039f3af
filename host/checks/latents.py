"""Checks of a latent's noise level when several samplers make a video one after the other."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from ...errors import InputError
from ..prompt.queue import Prompt, UnknownError, is_link, running_prompt
from .graph import type_of

LEVEL_TOLERANCE = 0.01
"""The tolerance for comparisons of a noise level with another level or with 0."""
MIN_FIRST_SIGMA = 0.95
"""The minimum first sigma of a run with an empty latent. Some of ComfyUI's schedules begin a little below 1."""
WITHOUT_LAST_STEP = "dpm_fast", "dpm_adaptive"
"""ComfyUI's samplers that omit the step to sigma 0. Their runs end at the last sigma above 0."""
OTHER_INPUTS = "The run before had another start image or camera: connect the same prompts to both samplers."
_MOST, _SAMPLES = 64, 4096
_noise_levels: dict[bytes, tuple[float, frozenset[bytes]]] = {}


def record_run(latent: Tensor, level: float, image_and_camera: Iterable[Tensor]) -> None:
    """Record how a run ended, for the check of a later run: the latent, its noise level, and the run's inputs."""
    _noise_levels.pop(name := _fingerprint(latent), None)
    _noise_levels[name] = level, frozenset(map(_fingerprint, image_and_camera))
    if len(_noise_levels) > _MOST:
        _noise_levels.pop(next(iter(_noise_levels)))


def _fingerprint(latent: Tensor) -> bytes:
    """Return a key that identifies a latent: evenly spaced values, in fp16 because ComfyUI may convert the dtype."""
    values = latent.detach().flatten()
    return values[:: max(1, len(values) // _SAMPLES)].half().cpu().numpy().tobytes()


def check_finite(guider, sigmas: Tensor, latent: Tensor) -> None:
    """Raise InputError if the guidance scales of `guider`, the sigmas or the latent contain NaN or infinity."""
    wrong = {name: value for name, value in vars(guider).items() if isinstance(value, float) and value - value != 0}
    for name, value in wrong.items():
        raise InputError(f"{name} is {value}, expected a number: set it on the node that guides this run")
    if not sigmas.isfinite().all():
        raise InputError("the sigmas contain NaN or infinity: look at the shift and at the node that makes the sigmas")
    if not latent.isfinite().all():
        raise InputError("the latent contains NaN or infinity: it comes from a run that failed; make it again")


def noise_level_warning(sigmas: Tensor, noise: Tensor, latent: Tensor, image_and_camera: Iterable[Tensor]) -> str:
    """Return a warning if the first noise level, start image or camera of a run does not fit the initial latent, else
    "". `image_and_camera`: their tensors."""
    first, adds = float(sigmas[0]), bool(noise.any())
    if latent.any():
        left, before = _noise_levels.get(_fingerprint(latent), (None, frozenset()))
        unlike = left is not None and not adds and before != frozenset(map(_fingerprint, image_and_camera))
        return _continuation_warning(left, first, adds) or (OTHER_INPUTS if unlike else "")
    if not adds:
        return "There is neither noise nor a video in the latent to begin with: take Random Noise, or a video's latent."
    if first < MIN_FIRST_SIGMA:
        return (
            f"The latent is empty, and the run begins at noise level {first:.3g}, so a part of the video stays empty: "
            "for a new video set denoise to 1 and begin at the first step (simple and beta begin at 1); to change a "
            "video connect its latent, from VAE Encode."
        )
    return ""


def _continuation_warning(left: float | None, first: float, adds: bool) -> str:
    if adds:
        if left is None or left <= LEVEL_TOLERANCE:
            return ""
        return (
            f"The run before has left noise of level {left:.3g} in the latent, and this run adds more: turn add_noise "
            "off (Disable Noise)."
        )
    if left is None:
        return (
            f"This run adds no noise, and no sampler has made its latent: the latent needs noise of level {first:.3g}. "
            "If no node has added it, turn add_noise on (Random Noise)."
        )
    if abs(left - first) <= LEVEL_TOLERANCE:
        return ""
    if left <= LEVEL_TOLERANCE:
        return (
            f"The run before has ended the video, and this run expects noise of level {first:.3g} and adds none: turn "
            "on return_with_leftover_noise in the node before, or add_noise (Random Noise) here."
        )
    return (
        f"The run before ends at noise level {left:.3g}, and this one begins at {first:.3g}: steps are left out or "
        "made twice. Set start_at_step to the other node's end_at_step, with the same steps, scheduler and shift."
    )


def input_noise_warnings(name: str, latent: Tensor) -> Iterator[str]:
    """Yield a warning if a sampling run has left noise in `latent`, which comes from the node's input `name`."""
    left = _noise_levels.get(_fingerprint(latent), (0.0,))[0]
    if left > LEVEL_TOLERANCE:
        yield f"{name} still has noise of level {left:.3g}, from a run that ended early: connect a finished video."


def last_noise_level(sampler, sigmas: Tensor) -> tuple[float, str]:
    """Return (level, name). The level is the sigma after the sampler's last step. The name is the sampler's if it omits
    the step to sigma 0, else ""."""
    name = getattr(getattr(sampler, "sampler_function", None), "__name__", "").removesuffix("_function")
    short = name in WITHOUT_LAST_STEP and len(sigmas) > 1 and float(sigmas[-1]) == 0
    return (float(sigmas[-2]), name) if short else (float(sigmas[-1]), "")


def leftover_noise_warnings(sampler, sigmas: Tensor, assume_last: bool) -> Iterator[str]:
    """Yield a warning if a sampling run leaves noise in the latent, and no later sampler or Save Latent node receives
    it. If ComfyUI's prompt is unknown, `assume_last` says whether the run is the last."""
    level, short = last_noise_level(sampler, sigmas)
    if level <= LEVEL_TOLERANCE or bool((sigmas.diff() > 0).any()):
        return
    try:
        ends = not _reaches_sampler(*running_prompt())
    except UnknownError:
        ends = assume_last
    if ends and short:
        yield f"{short} leaves out the last step, and the video keeps noise of level {level:.4g}: take another sampler."
    elif ends:
        yield f"The sigmas end at {level:.4g}: the video still has that much noise."


def _reaches_sampler(prompt: Prompt, node: str) -> bool:
    seen, waiting = {node}, [node]
    while waiting:
        here = waiting.pop()
        for other, made in prompt.items():
            links = [link for link in made["inputs"].values() if is_link(link)]
            types = {link[0]: type_of(prompt, link) for link in links}
            if other in seen or types.get(here) != "LATENT":
                continue
            if made["class_type"] == "SaveLatent" or {"MODEL", "GUIDER"} & set(types.values()):
                return True
            seen.add(other)
            waiting.append(other)
    return False
