"""The stages of one run, each gone before the next: text, VAE encode, both experts, VAE decode, file."""

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
from ..geometry import first_frame, image_conditioning
from ..loaders import load_expert, warm
from ..model.dit import LingBotWorldModel
from ..options import Progress
from ..sampling import first_low_step, flow_timesteps
from ..text import NEGATIVE_PROMPT, encode
from ..vae import decode_latent, encode_first_frame, load_vae
from .memory import MARGIN, Residency, choose_residency, estimate_vae, free_memory
from .plan import GenerateOptions, Plan, make_plan
from .profile import ShowProgress, Stage, StageRecorder, release, silent
from .two_experts import sample
from .video import write_frames

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What a run leaves: the file (or folder of PNG files), the seed that repeats it, and what each stage took."""

    path: Path
    seed: int
    stages: list[Stage]


def generate(options: GenerateOptions, show: ShowProgress = silent) -> Result:
    """Checks, then runs. Raises a LingBotError before anything heavy for what is wrong with `options`."""
    return run(make_plan(options), show)


def run(plan: Plan, show: ShowProgress = silent) -> Result:
    """Carries a plan out. `show(name, unit)` gives each stage's progress display."""
    seed = secrets.randbits(32) if plan.options.seed is None else plan.options.seed
    with StageRecorder(plan.device, show) as stages:
        try:
            path = _run_stages(plan, stages, seed)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(stages.running, error) from error
    return Result(path, seed, stages.stages)


def _run_stages(plan: Plan, stages: StageRecorder, seed: int) -> Path:
    context, context_null = _encode_text(plan, stages.begin("text", "block"))
    y = _encode_image(plan, stages.begin("VAE encode", "chunk"))
    latent = _sample(plan, stages, _noise(plan, seed), y, context, context_null)
    frames = _decode(plan, latent, stages.begin("VAE decode", "chunk"))
    return write_frames(frames.numpy(), plan.target, plan.options.fps, stages.begin("write", "frame"))


def _out_of_memory(stage: str, error: torch.OutOfMemoryError) -> InputError:
    knob = "--vae_tiling" if stage.startswith("VAE") else "--residency stream, a smaller --size or fewer --frame_num"
    return InputError(f"the GPU's memory ran out in stage {stage!r}; try {knob} ({str(error).splitlines()[0]})")


def _encode_text(plan: Plan, progress: Progress) -> list[Tensor | None]:
    """Prompt and negative prompt, each [1, L, D] float32; the second is None where guidance does not use it."""
    options, dtype = plan.options, torch.float32 if plan.options.dtype == "fp32" else torch.bfloat16
    prompts = [options.prompt]
    if plan.guided:
        prompts.append(NEGATIVE_PROMPT if options.negative is None else options.negative)
    rows = encode(prompts, plan.package.text_encoder, plan.package.tokenizer, plan.device, dtype, progress)
    return [row[None] for row in rows] + [None] * (2 - len(rows))


def _encode_image(plan: Plan, progress: Progress) -> Tensor:
    vae, frame = load_vae(plan.package.vae, device=plan.device), first_frame(plan.image, plan.geometry)
    encoded = _tiled_where_needed(plan, vae, 0, lambda: encode_first_frame(vae, frame, plan.geometry.frames, progress))
    return image_conditioning(encoded)


def _decode(plan: Plan, latent: Tensor, progress: Progress) -> Tensor:
    vae = load_vae(plan.package.vae, device=plan.device)
    return _tiled_where_needed(plan, vae, 1, lambda: decode_latent(vae, latent, progress))


def _tiled_where_needed(plan: Plan, vae, stage: int, work: Callable[[], Tensor]) -> Tensor:
    """`work()`, tile by tile where memory is short, or turns out to be."""
    needed = estimate_vae(vae.config.base_dim, plan.geometry)[stage]
    short = needed.work + MARGIN > free_memory(plan.device)
    if short:
        log.warning("%s needs %.1f GB, more than is free: it goes tile by tile.", needed.name, needed.total / 1e9)
    if plan.options.vae_tiling or short:
        vae.enable_tiling()
    try:
        return work()
    except torch.OutOfMemoryError:
        if vae.use_tiling:
            raise
    log.warning("%s did not fit into the GPU's memory: again, tile by tile.", needed.name)
    vae.clear_cache()
    release(plan.device)
    vae.enable_tiling()
    return work()


def _noise(plan: Plan, seed: int) -> Tensor:
    """float32 [1, 16, f, h, w]; from a CPU generator the same on every machine, from a CUDA one as officially."""
    geometry, device = plan.geometry, plan.options.noise_device
    shape = 1, 16, geometry.lat_f, geometry.lat_h, geometry.lat_w
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(plan.device)


def _camera(plan: Plan) -> Tensor | None:
    if plan.camera is None:
        return None
    path, geometry = plan.camera, plan.geometry
    size = {"frames": geometry.frames, "height": geometry.height, "width": geometry.width}
    if path.actions is not None:
        return action_embedding(path.c2w, path.intrinsics, path.actions, **size)
    return camera_embedding(path.c2w, path.intrinsics, **size)


def _sample(plan: Plan, stages: StageRecorder, noise: Tensor, y: Tensor, context: Tensor, context_null) -> Tensor:
    options = plan.options
    stages.begin("camera")
    camera = _camera(plan)
    residency = choose_residency(plan, free_memory(plan.device))
    experts = _Experts(plan, stages, residency)
    return sample(
        experts.high, experts.low, noise, y, context, context_null, camera,
        steps=options.sampling_steps,
        shift=options.shift,
        boundary=options.boundary,
        guide_scale=options.guide_scale,
        solver=options.solver,
        callback=experts.step_done,
        camera_cache_bytes=residency.camera_cache_bytes,
    )  # fmt: skip


class _Experts:
    """The experts as `sample` fetches them, each load and each expert's steps a stage of their own."""

    def __init__(self, plan: Plan, stages: StageRecorder, residency: Residency):
        self._plan, self._stages, self._residency = plan, stages, residency
        self._held_low: LingBotWorldModel | None = None
        self._progress: Progress = lambda done, total: None
        timesteps = flow_timesteps(plan.options.sampling_steps, plan.options.shift, plan.options.solver)
        self._high_steps = first_low_step(timesteps, plan.options.boundary)
        self._steps = len(timesteps)

    def high(self) -> LingBotWorldModel:
        """Loads the high-noise expert, and the low-noise one with it, or else warms the low one's files."""
        model = self._load("high", keep=True)
        if self._residency.both and self._high_steps < self._steps:
            self._held_low = self._load("low", keep=True)
        elif self._high_steps < self._steps:
            warm(self._plan.low)
        self._progress = self._stages.begin("high-noise steps", "step", keep=True)
        return model

    def low(self) -> LingBotWorldModel:
        """Loads the low-noise expert unless it is there already."""
        model, self._held_low = self._held_low or self._load("low"), None
        self._progress = self._stages.begin("low-noise steps", "step", keep=True)
        return model

    def step_done(self, step: int, *_) -> None:
        """The solver's callback."""
        first, count = 0, self._high_steps
        if step >= self._high_steps:
            first, count = self._high_steps, self._steps - self._high_steps
        self._progress(step + 1 - first, count)

    def _load(self, name: str, keep: bool = False) -> LingBotWorldModel:
        progress = self._stages.begin(f"load {name}-noise expert", "B", keep=keep)
        plan, blocks = self._plan, self._residency.resident_blocks
        return load_expert(getattr(plan, name), plan.device, plan.dtype, progress=progress, resident_blocks=blocks)
