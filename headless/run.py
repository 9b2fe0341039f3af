"""The stages of one run: text, VAE encode, both experts, VAE decode, file. Each frees its models before the next."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor

from ..errors import InputError
from ..generation.two_experts import Conditioning, Together, Video
from ..options import ShowProgress
from ..sampling import StepReuse
from .decoding import decode_together
from .memory import choose_residency, free_memory
from .options import GenerateOptions
from .plan import SamplingPlan, make_plan
from .processes import ALONE, Processes
from .profile import Stage, StageRecorder, silent
from .rollout import run_rollout
from .rollout_plan import RolloutPlan
from .stages import camera_map, draw_noise, encode_image, encode_prompts, prompts_of, run_steps
from .video import write_frames


@dataclass(frozen=True)
class Result:
    """The video file or the folder of PNG files, the seed that makes the same again, and what each stage took.
    `model_steps`: those that the base model predicted; fewer than all with a `reuse_threshold`."""

    path: Path
    seed: int
    stages: list[Stage]
    model_steps: int


def generate(options: GenerateOptions, show: ShowProgress = silent) -> Result:
    """Checks, then runs. Raises a LingBotError for what is wrong with `options` before it loads anything."""
    return run(make_plan(options), show)


def run(plan: SamplingPlan | RolloutPlan, show: ShowProgress = silent, processes: Processes = ALONE) -> Result:
    """Carries a plan out, with `processes` that all call this with the same options. `show(name, unit)` gives each
    stage's progress display."""
    seed = processes.share(secrets.randbits(32), 0) if plan.options.seed is None else plan.options.seed
    reuse = StepReuse(plan.options.reuse_threshold)
    with StageRecorder(plan.device, show) as stages:
        try:
            path = _run_stages(plan, stages, seed, processes, reuse)
        except torch.OutOfMemoryError as error:
            raise _out_of_memory(stages.running, error) from error
    return Result(path, seed, stages.stages, reuse.calls)


def _run_stages(
    plan: SamplingPlan | RolloutPlan, stages: StageRecorder, seed: int, processes: Processes, reuse: StepReuse
) -> Path:
    """The video's path. Of several processes the first encodes the prompts while the second encodes the image."""
    config = (plan.checkpoint if isinstance(plan, RolloutPlan) else plan.experts.high).config
    together = processes.divide(config, isinstance(plan, SamplingPlan) and plan.guided, plan.options.shard)
    with _triton_starting(plan.device):
        prompts = encode_prompts(prompts_of(plan), plan, stages.begin("text", "block")) if processes.takes(0) else None
    generator = torch.Generator(plan.options.noise_device).manual_seed(seed)
    noise = draw_noise(plan.geometry, generator)
    if isinstance(plan, RolloutPlan):
        context = processes.share(prompts, 0)[0]
        return run_rollout(plan, context, noise, generator, stages, processes, together)
    y = encode_image(plan, stages.begin("VAE encode", "chunk")) if processes.takes(1) else None
    context, *negative = processes.share(prompts, 0)
    y = processes.share(y, 1)
    latent = _sample(plan, stages, noise, y, context, negative[0] if negative else None, together, reuse)
    frames = decode_together(plan, latent, stages.begin("VAE decode", "chunk"), processes)
    if frames is None:
        return plan.target.path
    return write_frames(frames.numpy(), plan.target, plan.options.fps, stages.begin("write", "frame"))


@contextmanager
def _triton_starting(device: torch.device) -> Iterator[None]:
    """Triton takes half a second to start, most of it for a hash of its own files. A thread has it start meanwhile."""

    def start() -> None:
        with suppress(Exception):  # the models' first kernel meets it again, and says so
            from ..model.kernels import gated_add_

            x = torch.zeros(1, 64, device=device)
            gated_add_(x, x.bfloat16(), x[0])

    thread = Thread(target=start)
    if device.type == "cuda":
        thread.start()
    try:
        yield
    finally:
        if thread.is_alive():
            thread.join()


def _out_of_memory(stage: str, error: torch.OutOfMemoryError) -> InputError:
    remedy = "`vae_tiling`" if stage.startswith("VAE") else "`residency` stream, a smaller video or fewer frames"
    return InputError(f"the GPU's memory ran out in stage {stage!r}; try {remedy} ({str(error).splitlines()[0]})")


def _sample(
    plan: SamplingPlan,
    stages: StageRecorder,
    noise: Tensor,
    y: Tensor,
    context: Tensor,
    context_null: Tensor | None,
    together: Together,
    reuse: StepReuse,
) -> Tensor:
    stages.begin("camera")
    camera = camera_map(plan)
    conditioning = Conditioning(y, context, context_null, camera).to(plan.device)
    residency = choose_residency(plan, free_memory(plan.device), together)
    video = Video(noise.to(plan.device), lambda: conditioning, reuse)
    return run_steps(plan, [video], stages, residency, together)[0]
