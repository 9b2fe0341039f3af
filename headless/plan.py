"""The plan of a run: one video's checked options and opened files."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ..camera.advice import warnings
from ..camera.pose_folder import PoseFolder
from ..errors import InputError, require
from ..loaders import Checkpoint, Package, find_package, open_checkpoint
from ..loaders.lora import refuse_loras_for_one_expert
from ..loaders.package import ASSETS_PAGES, open_experts
from ..loaders.release import base_release
from ..model.attention.choose_8bit import check_8_bits
from ..model.config import ModelConfig
from ..options import SHIFT, PerExpert, torch_dtype
from ..pipeline.geometry import first_frame
from ..pipeline.memory import SamplingWork
from ..pipeline.state import last_prompt
from ..pipeline.threads import use_idle_cores
from ..pipeline.two_experts import ONE_PROCESS, ParallelGroups, TwoExpertSchedule
from ..sampling import guide_scales
from ..text import load_tokenizer
from ..text.encoder import check_vocabulary
from ..text.tokenizer import find_tokenizer
from ..text.weights import UMT5Weights, open_weights
from ..vae import read_vae
from . import checks
from .camera_path import camera_of
from .checks import Plan, RunInputs
from .devices import find_device
from .files.pictures import image_notes, read_image
from .files.target import check_new, check_target, find_target
from .live.beginning import update_state
from .options import CAUSAL_ONLY, PARTS, GenerateOptions
from .prompt_cache import EmbeddingCache
from .rollout_plan import RolloutPlan, plan_causal


@dataclass(frozen=True, kw_only=True)
class SamplingPlan(Plan):
    """The plan of a run with the base model, which has two experts."""

    experts: PerExpert[Checkpoint]
    camera: PoseFolder | None
    shift: float

    @property
    def config(self) -> ModelConfig:
        return self.experts.high.config

    @property
    def amount(self) -> str:
        """The run's number of denoising steps as text, such as "40 steps"."""
        return checks.pluralize(self.options.sampling_steps, "step")

    def sampling_work(self, together: ParallelGroups = ONE_PROCESS) -> SamplingWork:
        """Return the sizes and settings that determine the memory of the denoising steps. `together`: the groups of
        processes that split each forward; the default is one process."""
        return SamplingWork(
            self.experts, self.geometry, self.precision(), self.camera is not None, self.guided, together
        )

    @property
    def schedule(self) -> TwoExpertSchedule:
        """The denoising schedule, with the expert of each step."""
        options = self.options
        return TwoExpertSchedule(
            options.sampling_steps, self.shift, options.boundary, options.guide_scale, options.solver
        )

    @property
    def guided(self) -> bool:
        """Whether the model uses the negative prompt."""
        return any(scale != 1 for scale in guide_scales(self.options.guide_scale))


AnyPlan: TypeAlias = SamplingPlan | RolloutPlan


def set_threads(plan: AnyPlan) -> str:
    """Set torch's number of threads for a run on a CPU, and return a note for the user, or "". A continued run uses the
    number in its state, so that sums round alike."""
    geometry, state = plan.geometry, None
    if isinstance(plan, RolloutPlan):
        geometry, state = plan.chunk_geometry, plan.spec.state
    return use_idle_cores(plan.device, plan.config.dim * geometry.tokens, 0 if state is None else state.threads)


def make_plan(
    options: GenerateOptions, open_file: Callable[..., Any] = lambda opener, path, *loras: opener(path, *loras)
) -> AnyPlan:
    """Check the options, open all files, and return the run's plan. Raises a LingBotError for the first invalid option
    or file. `open_file(opener, path, *loras)` opens a file with `opener(path, *loras)`, and may cache the result."""
    options = resolve_continue_from(options)
    checks.check_settings(options)
    device = find_device(options.device)
    target = find_target(options.output, options.overwrite)
    if target.pattern is None and target.in_memory is None:
        require("av", '"lingbot-world[cli]"')
    image = None if options.image is None else read_image(options.image)
    named = {name: getattr(options, name) for name in PARTS}
    package = find_package(options.ckpt_dir, assets=options.assets_dir, release=options.release, **named)
    paths = _parts(package, options.ckpt_dir)
    text_encoder = open_file(open_weights, paths["text_encoder"])
    tokenizer_file = find_tokenizer(paths["tokenizer"])
    prompt_cache = EmbeddingCache.for_encoder(paths["text_encoder"], tokenizer_file, checks.text_dtype(options), device)
    tokenizer = None if prompt_cache.has(options.prompt) else open_file(load_tokenizer, tokenizer_file)
    if tokenizer is not None:
        check_vocabulary(tokenizer, text_encoder)
    dtype = torch_dtype(options.dtype or ("fp32" if device.type == "cpu" else "bf16"))
    inputs = RunInputs(
        options=options,
        tokenizer=tokenizer or tokenizer_file,
        prompt_cache=prompt_cache,
        text_encoder=text_encoder,
        vae=open_file(read_vae, paths["vae"]),
        target=target,
        device=device,
        dtype=dtype,
    )
    plan: AnyPlan
    if package.causal is not None:
        refuse_loras_for_one_expert(options.lora, package.causal)
        checkpoint = open_file(_model_opener(dtype), package.causal, options.lora)
        checkpoint = checkpoint if options.release is None else checkpoint.with_release(options.release)
        _check_width(text_encoder, checkpoint.config)
        plan = plan_causal(inputs, checkpoint, image)
    else:
        assert package.experts is not None  # a package has either experts or a causal model
        experts = open_file(_experts_opener(dtype), package.experts, options.lora)
        _check_width(text_encoder, experts.high.config)
        plan = _plan_sampling(inputs, experts, image)
    check_target(target, plan.geometry)
    source = options.image if isinstance(options.image, str | Path) else None
    try:
        check_new(target, plan.frames_before, plan.geometry.frames, source, options.overwrite)
    except InputError:
        with target.lock():  # raises an error that names the reason if another run is still writing the files
            raise
    return plan


def resolve_continue_from(options: GenerateOptions) -> GenerateOptions:
    """Return the options with `continue_from` resolved. A walk's folder becomes its state file, and an empty `prompt`
    becomes the state's prompt. Without `continue_from`, nothing changes."""
    if options.continue_from is None:
        return options
    state = update_state(options.continue_from)
    assert state is not None  # `continue_from` is set
    prompt = options.prompt if options.prompt.strip() else last_prompt(state)
    return replace(options, continue_from=state, prompt=prompt)


@cache  # open files are cached together with their opener
def _model_opener(dtype: torch.dtype) -> Callable[..., Checkpoint]:
    return lambda path, loras: open_checkpoint(path, loras).rounded(dtype)


@cache
def _experts_opener(dtype: torch.dtype) -> Callable[..., PerExpert[Checkpoint]]:
    return lambda paths, loras: PerExpert(*(expert.rounded(dtype) for expert in open_experts(paths, loras)))


def _check_width(encoder: UMT5Weights, config: ModelConfig) -> None:
    if encoder.config.dim != config.text_dim:
        raise InputError(
            f"`text_encoder` {encoder.path}: its embeddings have {encoder.config.dim} values, the model "
            f"reads {config.text_dim}; give the umt5-xxl encoder that the model came with"
        )


def _plan_sampling(inputs: RunInputs, experts: PerExpert[Checkpoint], image: np.ndarray | None) -> SamplingPlan:
    options = inputs.options
    checks.refuse_options(options, CAUSAL_ONLY, "the base model makes a video as a whole; causal models take it")
    if image is None:
        raise InputError("`image` is missing: the video's first frame")
    assumed = base_release(experts.high.names)[2]
    eight_bit = check_8_bits(options.arithmetic, options.attention, inputs.device, experts.high.config)
    notes = (
        *([] if assumed is None else [assumed]),
        *image_notes(options.image),
        *checks.lora_notes(options, two_experts=True),
        *checks.text_notes(options, any(scale != 1 for scale in guide_scales(options.guide_scale))),
        *eight_bit,
    )
    if inputs.device.type == "cpu" and options.residency != "auto":
        notes = (*notes, f"`residency` {options.residency} has no effect on a CPU: experts are their mapped files.")
    camera = camera_of(options, experts.high)
    geometry = checks.geometry_of(options, image, None if camera is None else len(camera.c2w))
    warned = [] if camera is None else warnings(camera, geometry.frames)
    return SamplingPlan(
        **vars(inputs),
        experts=experts,
        camera=camera,
        frame=first_frame(image, geometry),
        geometry=geometry,
        shift=SHIFT if options.shift is None else options.shift,
        notes=tuple(dict.fromkeys((*notes, *checks.length_notes(options, geometry, camera), *warned))),
    )


def _parts(package: Package, folder: str | Path) -> dict[str, Path]:
    paths = {name: getattr(package, name) for name in ("tokenizer", "text_encoder", "vae")}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        near = " nor next to it" if package.causal is not None else ""
        raise InputError(
            f"`ckpt_dir` {folder}: no {', '.join(missing)} in this package{near}; name the path as "
            f"{', '.join(f'`{name}`' for name in missing)}, or as `assets_dir` a folder that has them, "
            f"such as those of {ASSETS_PAGES}"
        )
    return paths
