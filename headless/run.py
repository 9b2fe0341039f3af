"""The stages of one run: text, VAE encode, both experts, VAE decode, file. Each frees its models before the next."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..camera import action_embedding, camera_embedding
from ..errors import InputError
from ..geometry import Geometry, image_conditioning
from ..loaders import load_expert, warm
from ..model.dit import LingBotWorldModel
from ..options import Progress
from ..sampling import first_low_step, flow_timesteps
from ..text import NEGATIVE_PROMPT, encode
from ..vae import VAE, decode_latent, encode_first_frame, load_vae
from ..vae.network import LATENT_CHANNELS
from .checks import Plan
from .memory import Residency, choose_residency, free_memory
from .options import GenerateOptions
from .plan import SamplingPlan, make_plan
from .processes import ALONE, Processes
from .profile import ShowProgress, Stage, StageRecorder, release, silent
from .rollout import run_rollout
from .rollout_plan import RolloutPlan
from .two_experts import Together, sample
from .video import write_frames

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The video file or the folder of PNG files, the seed that makes the same again, and what each stage took."""

    path: Path
    seed: int
    stages: list[Stage]


def generate(options: GenerateOptions, show: ShowProgress = silent) -> Result:
    """Checks, then runs. Raises a LingBotError for what is wrong with `options` before it loads anything."""
    return run(make_plan(options), show)


def run(plan: SamplingPlan | RolloutPlan, show: ShowProgress = silent, processes: Processes = ALONE) -> Result:
    """Carries a plan out, with `processes` that all call this with the same options. `show(name, unit)` gives each
    stage's progress display."""
    seed = processes.share(secrets.randbits(32), 0) if plan.options.seed is None else plan.options.seed
    with StageRecorder(plan.device, show) as stages:
        try:
            path = _run_stages(plan, stages, seed, processes)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(stages.running, error) from error
    return Result(path, seed, stages.stages)


def _run_stages(
    plan: SamplingPlan | RolloutPlan, stages: StageRecorder, seed: int, processes: Processes
) -> Path:
    """The video's path. Of several processes the first encodes the prompts while the second encodes the image."""
    config = (plan.checkpoint if isinstance(plan, RolloutPlan) else plan.experts.high).config
    together = processes.divide(config, isinstance(plan, SamplingPlan) and plan.guided)
    prompts = _encode_text(plan, stages.begin("text", "block")) if processes.takes(0) else None
    generator = torch.Generator(plan.options.noise_device).manual_seed(seed)
    noise = draw_noise(plan.geometry, generator)
    if isinstance(plan, RolloutPlan):
        context = processes.share(prompts, 0)[0]
        return run_rollout(plan, context, noise, generator, stages, processes, together.sequence)
    y = _encode_image(plan, stages.begin("VAE encode", "chunk")) if processes.takes(1) else None
    context, *negative = processes.share(prompts, 0)
    y = processes.share(y, 1)
    latent = _sample(plan, stages, noise, y, context, negative[0] if negative else None, together)
    if not processes.first:
        return plan.target.path
    frames = _decode(plan, latent, stages.begin("VAE decode", "chunk"))
    return write_frames(frames.numpy(), plan.target, plan.options.fps, stages.begin("write", "frame"))


def _out_of_memory(stage: str, error: torch.OutOfMemoryError) -> InputError:
    remedy = "`vae_tiling`" if stage.startswith("VAE") else "`residency` stream, a smaller video or fewer frames"
    return InputError(f"the GPU's memory ran out in stage {stage!r}; try {remedy} ({str(error).splitlines()[0]})")


def _encode_text(plan: SamplingPlan | RolloutPlan, progress: Progress) -> list[Tensor]:
    """The prompt [1, L, D] float32, and the negative prompt where guidance uses it."""
    options, dtype = plan.options, torch.float32 if plan.options.dtype == "fp32" else torch.bfloat16
    prompts = [options.prompt]
    if isinstance(plan, SamplingPlan) and plan.guided:
        prompts.append(NEGATIVE_PROMPT if options.negative is None else options.negative)
    return [row[None] for row in encode(prompts, plan.text_encoder, plan.tokenizer, plan.device, dtype, progress)]


def _encode_image(plan: Plan, progress: Progress) -> Tensor:
    vae, frame = load_vae(plan.vae, device=plan.device), plan.frame
    encoded = _with_tiles_if_short(plan, vae, lambda: encode_first_frame(vae, frame, plan.geometry.frames, progress))
    return image_conditioning(encoded)


def _decode(plan: Plan, latent: Tensor, progress: Progress) -> Tensor:
    vae = load_vae(plan.vae, device=plan.device)
    return _with_tiles_if_short(plan, vae, lambda: decode_latent(vae, latent, progress))


def _with_tiles_if_short(plan: Plan, vae: VAE, work: Callable[[], Tensor]) -> Tensor:
    """`work()`; where the GPU's memory runs out, `work()` again with the VAE in tiles."""
    if plan.options.vae_tiling:
        vae.enable_tiling()
    try:
        return work()
    except torch.OutOfMemoryError:
        if vae.use_tiling:
            raise
    log.warning("The VAE did not fit into the GPU's memory: again, tile by tile.")
    release(plan.device)
    vae.enable_tiling()
    return work()


def draw_noise(geometry: Geometry, generator: torch.Generator) -> Tensor:
    """The latent's noise float32 [1, 16, f, h, w] on the generator's device, drawn there.

    A CPU generator gives the same on every machine; the official code draws from a CUDA generator.
    """
    shape = 1, LATENT_CHANNELS, geometry.lat_f, geometry.lat_h, geometry.lat_w
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)


def _camera_map(plan: SamplingPlan) -> Tensor | None:
    """What the camera layers are conditioned on: a Pluecker map, and the keys for models that take them."""
    if plan.camera is None:
        return None
    path, geometry = plan.camera, plan.geometry
    size = {"frames": geometry.frames, "height": geometry.height, "width": geometry.width}
    if path.actions is not None:
        return action_embedding(path.c2w, path.intrinsics, path.actions, **size)
    return camera_embedding(path.c2w, path.intrinsics, **size)


def _sample(
    plan: SamplingPlan,
    stages: StageRecorder,
    noise: Tensor,
    y: Tensor,
    context: Tensor,
    context_null: Tensor | None,
    together: Together,
) -> Tensor:
    options = plan.options
    stages.begin("camera")
    camera = _camera_map(plan)
    residency = choose_residency(plan, free_memory(plan.device), together)
    experts = _Experts(plan, stages, residency)
    return sample(
        experts.high, experts.low, noise.to(plan.device), y, context, context_null, camera,
        steps=options.sampling_steps,
        shift=plan.shift,
        boundary=options.boundary,
        guide_scale=options.guide_scale,
        solver=options.solver,
        callback=experts.step_done,
        camera_cache_bytes=residency.camera_cache_bytes,
        sequence_parallel=together.sequence,
        guidance_group=together.guidance,
    )  # fmt: skip


class _Experts:
    """Loads the experts when `sample` calls for them, and records each load and each expert's steps as a stage."""

    def __init__(self, plan: SamplingPlan, stages: StageRecorder, residency: Residency) -> None:
        self._plan, self._stages, self._residency = plan, stages, residency
        self._low_ahead: LingBotWorldModel | None = None
        self._progress: Progress = lambda _done, _total: None
        timesteps = flow_timesteps(plan.options.sampling_steps, plan.shift, plan.options.solver)
        self._high_steps = first_low_step(timesteps, plan.options.boundary)
        self._steps = len(timesteps)

    def high(self) -> LingBotWorldModel:
        """The high-noise expert. The low-noise one is loaded too where both stay; otherwise its files are read into
        the page cache while the steps run."""
        model = self._load("high", keep=True)
        if self._residency.both and self._high_steps < self._steps:
            self._low_ahead = self._load("low", keep=True)
        elif self._high_steps < self._steps:
            warm(self._plan.experts.low)
        self._progress = self._stages.begin("high-noise steps", "step", keep=True)
        return model

    def low(self) -> LingBotWorldModel:
        """The low-noise expert, loaded unless both were."""
        model, self._low_ahead = self._low_ahead or self._load("low"), None
        self._progress = self._stages.begin("low-noise steps", "step", keep=True)
        return model

    def step_done(self, step: int, *_: object) -> None:
        """The solver's callback: counts the steps of the expert that made this one."""
        if step < self._high_steps:
            self._progress(step + 1, self._high_steps)
        else:
            self._progress(step + 1 - self._high_steps, self._steps - self._high_steps)

    def _load(self, name: str, keep: bool = False) -> LingBotWorldModel:
        progress = self._stages.begin(f"load {name}-noise expert", "B", keep=keep)
        plan, blocks = self._plan, self._residency.resident_blocks
        expert = getattr(plan.experts, name)
        return load_expert(expert, plan.device, plan.dtype, progress=progress, resident_blocks=blocks)
