"""The run of a model: `generate` makes a video from options, and `run` from a checked plan."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..options import Progress, ShowProgress
from ..outputs import lock_output
from ..pipeline.memory import choose_residency, free_memory
from ..pipeline.two_experts import ParallelGroups, Video
from ..sampling import StepReuse
from ..typed import checked
from .files.recipe import make_recipe
from .files.target import check_new
from .files.video import write_frames
from .options import GenerateOptions
from .plan import AnyPlan, SamplingPlan, make_plan
from .process.decoding import decode_together
from .process.processes import ALONE, Processes
from .process.profile import Stage, StageRecorder, silent, with_callbacks
from .process.starting import triton_starting
from .rollout import run_causal
from .rollout_plan import RolloutPlan, check_saved
from .stages import RunContext, condition_on_image, conditioning, draw_noise, encode_prompts, run_steps, texts_of


@dataclass(frozen=True)
class Result:
    """The result of a run.

    path: the video file or PNG folder; None if `output` was None.
    model_steps: the base model's steps, without extrapolated ones; 0 for causal models.
    frames: the video, uint8 [F, H, W, 3], if `output` was None; else None.
    """

    path: Path | None
    seed: int
    stages: list[Stage]
    model_steps: int
    frames: np.ndarray | None = None


@checked
def generate(
    options: GenerateOptions,
    show: ShowProgress = silent,
    *,
    on_progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Result:
    """Make a video and return its Result. Raises a LingBotError for invalid `options` before weights are loaded. After
    a cancelled run of a causal model, the video's finished chunks remain.

    show: show(name, unit) returns a context manager for each stage's progress display.
    on_progress: on_progress(done, total) counts a base model's denoising steps, or the video's frames with a causal
    model.
    cancel: a function called at each progress update. If it returns true, the run raises CancelledError.
    """
    plan = make_plan(options)
    return run(plan, with_callbacks(show, plan.options.sampling_steps, on_progress, cancel))


def run(plan: AnyPlan, show: ShowProgress = silent, processes: Processes = ALONE) -> Result:
    """Run a plan and return its Result. If there are several `processes`, each must call this function with a plan of
    equal options. Raises a LingBotError if memory runs out or an output cannot be written."""
    seed = processes.share(secrets.randbits(32), 0) if plan.options.seed is None else plan.options.seed
    reuse = StepReuse(plan.options.reuse_threshold)
    if processes.first:
        plan = with_recipe(plan, seed, processes.size)
    with _lock_outputs(plan, processes), StageRecorder(plan.device, show) as stages:
        try:
            path = _run_stages(plan, stages, seed, processes, reuse)
        except torch.OutOfMemoryError as error:
            stage = stages.running or "noise"
            smaller = "`residency` stream, a smaller video or fewer frames"
            remedy = "`vae_tiling`" if stage.startswith("VAE") else smaller
            found = str(error).splitlines()[0]
            raise InputError(f"the GPU's memory ran out in stage {stage!r}; try {remedy} ({found})") from error
    kept = plan.target.in_memory
    if not kept:
        return Result(path, seed, stages.stages, reuse.calls)
    return Result(None, seed, stages.stages, reuse.calls, np.concatenate(kept))


def with_recipe(plan: AnyPlan, seed: int, processes: int = 1) -> AnyPlan:
    """Return a copy of the plan that records the options, `seed` and `processes` in the video's metadata. Return the
    plan itself if the frames stay in memory, or if the environment variable LINGBOT_WORLD_RECORD is ""."""
    if plan.target.in_memory is not None or os.environ.get("LINGBOT_WORLD_RECORD") == "":
        return plan
    return replace(plan, target=replace(plan.target, recipe=make_recipe(plan, seed, processes)))


@contextmanager
def lock_outputs(plan: AnyPlan) -> Iterator[None]:
    """Lock a plan's output files within this context. Raises InputError if one is locked, or has appeared since the
    plan was made."""
    options, state = plan.options, plan.options.save_state
    image = options.image if isinstance(options.image, str | Path) else None
    with plan.target.lock(), nullcontext() if state is None else lock_output(Path(state)):
        check_new(plan.target, plan.frames_before, plan.geometry.frames, image, options.overwrite)
        if state is not None:
            check_saved(Path(state), options, plan.target)
        yield


@contextmanager
def _lock_outputs(plan: AnyPlan, processes: Processes) -> Iterator[None]:
    """Lock the outputs in the first process. If that raises InputError, raise it in all processes."""
    with ExitStack() as stack:
        refusal = ""
        if processes.first:
            try:
                stack.enter_context(lock_outputs(plan))
            except InputError as error:
                refusal = str(error)
        if refusal := processes.share(refusal, 0):
            raise InputError(refusal)
        yield


def share_forward(plan: AnyPlan, processes: Processes) -> ParallelGroups:
    """Return the groups of processes that split each forward of the plan's model. Every process must call this
    function."""
    guided = isinstance(plan, SamplingPlan) and plan.guided
    return processes.divide(plan.config, guided, plan.options.shard)


def _run_stages(plan: AnyPlan, stages: StageRecorder, seed: int, processes: Processes, reuse: StepReuse) -> Path:
    together = share_forward(plan, processes)
    run, generator = RunContext(stages, processes, together), torch.Generator(plan.options.noise_device)
    noise = draw_noise(plan.geometry, generator.manual_seed(seed))
    if isinstance(plan, RolloutPlan):
        return run_causal(plan, lambda: processes.share(_prompts(plan, run), 0), noise, generator, run)
    prompts = _prompts(plan, run)
    y = condition_on_image(plan, stages.begin("VAE encode", "chunk")) if processes.takes(1) else None
    prompts, y = processes.share(prompts, 0), processes.share(y, 1)
    stages.begin("camera")
    given = conditioning(plan, y, prompts)
    video, work = Video(noise.to(plan.device), lambda: given, reuse), plan.sampling_work(together)
    residency = choose_residency(work, plan.memory_options, plan.device, free_memory(plan.device))
    latent = run_steps(plan, [video], stages, residency, together)[0]
    frames = decode_together(plan, latent, stages.begin("VAE decode", "chunk"), processes)
    if frames is None:
        return plan.target.path
    return write_frames(frames.numpy(), plan.target, plan.options.fps, stages.begin("write", "frame"))


def _prompts(plan: AnyPlan, run: RunContext) -> list[Tensor] | None:
    """Return the prompts' embeddings in the first process, and None in others."""
    with triton_starting(plan.device):
        if not run.processes.takes(0):
            return None
        return encode_prompts(texts_of(plan), plan, run.stages.begin("text", "block"))
