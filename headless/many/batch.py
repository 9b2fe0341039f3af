"""The command `lingbot-world batch`: make many videos, and record each outcome in a manifest."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ...camera.formats.numpy_files import write_lingbot
from ...errors import InputError, LingBotError
from ...options import ShowProgress
from ...pipeline.memory import choose_residency
from ...pipeline.two_experts import Video
from ...sampling import StepReuse
from ..camera_path import make_path
from ..files.existing import refuse_existing
from ..files.video import write_frames
from ..options import GenerateOptions
from ..plan import AnyPlan, SamplingPlan, make_plan, set_threads
from ..process.profile import StageRecorder, silent
from ..run import lock_outputs, run, with_recipe
from ..stages import condition_on_image, conditioning, decode, draw_noise, encode_prompts, run_steps, texts_of
from .jobs import Job
from .manifest import Manifest, Outcome, lock_batch
from .model_cache import ModelCache, OpenFiles

VIDEOS_AT_ONCE = 8
"""The maximum number of videos that are sampled together before the first of them is decoded."""
PROMPTS_AT_ONCE = 8
MAX_NAMES = 3
"""The maximum number of jobs that a message lists by name."""


@dataclass(frozen=True)
class SeededJob:
    job: Job
    seed: int


@dataclass(frozen=True)
class Counts:
    """The numbers of jobs by outcome. `skipped`: jobs with a video from an earlier run."""

    done: int
    skipped: int
    failed: int


RunGroups = Callable[[list[list[SeededJob]], Path], Iterator[Outcome]]
"""A function run_groups(groups, folder) that makes the videos and yields each job's outcome."""


def run_batch(
    jobs: Sequence[Job],
    folder: Path,
    show: ShowProgress = silent,
    run_groups: RunGroups | None = None,
    tell: Callable[[str], None] = lambda _text: None,
    own_process: bool = False,
) -> Counts:
    """Make a batch's missing and outdated videos, and record the outcomes. Raises InputError for a folder in use.

    run_groups: a function that makes the videos of groups of jobs; None uses this process.
    tell: `tell(message)` gets notes and failures.
    own_process: whether this process runs only the batch, which may then set torch's number of threads.
    """
    _check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_batch(folder):
        manifest = Manifest(folder)
        waiting = _waiting(jobs, manifest, tell)
        manifest.path.touch()
        manifest.begin(waiting)
        begun = {job.name for job in waiting}
        manifest.complete(job for job in jobs if job.name not in begun)
        planned, failed = _plan(waiting, folder, tell)
        groups, done = [group for _, group in planned], 0
        here = _run_here(planned, folder, show, tell, own_process)
        with _note_unfinished(waiting, manifest):
            for outcome in chain(failed, here if run_groups is None else run_groups(groups, folder)):
                manifest.note(outcome)
                done += outcome.error is None
                if outcome.error is not None:
                    tell(f"{outcome.job.name} failed: {outcome.error}")
    return Counts(done, len(jobs) - len(waiting), len(waiting) - done)


def _run_here(
    planned: list[tuple[AnyPlan, list[SeededJob]]],
    folder: Path,
    show: ShowProgress,
    tell: Callable[[str], None],
    own_process: bool,
) -> Iterator[Outcome]:
    cache, threads, told = ModelCache(), torch.get_num_threads(), {""}
    for plan, group in planned:
        torch.set_num_threads(threads)
        if own_process and (note := set_threads(plan)) not in told:
            tell(note)
            told.add(note)
        yield from run_group(group, folder, cache, show)


@contextmanager
def _note_unfinished(waiting: Sequence[Job], manifest: Manifest) -> Iterator[None]:
    """On exit, record a failure of each job that was interrupted after its video file was created. Without a record,
    the next run would refuse to replace the file."""
    try:
        yield
    finally:
        for job in waiting:
            if job not in manifest and job.video(manifest.folder).exists():
                manifest.note(Outcome(job, 0, error="it was interrupted"))


def check_batch(jobs: Sequence[Job], folder: Path, tell: Callable[[str], None]) -> Counts:
    """Check a batch without writing to `folder`. Return the counts that `run_batch` would return. `tell(message)` gets
    the plans' notes, a line for each group of jobs, and expected failures."""
    _check_folder(folder)
    waiting = _waiting(jobs, Manifest(folder), tell)
    with TemporaryDirectory() as cameras:
        groups, failed = _plan(waiting, Path(cameras), tell)
    for outcome in failed:
        tell(f"{outcome.job.name} would fail: {outcome.error}")
    for plan, group in groups:
        size, names = plan.geometry, ", ".join(seeded.job.name for seeded in group)
        tell(f"{size.width}x{size.height}, {size.frames} frames, {plan.amount} on {plan.device}: {names}")
    return Counts(len(waiting) - len(failed), len(jobs) - len(waiting), len(failed))


def _check_folder(folder: Path) -> None:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"{there}: a file; expected a folder for the videos of the batch, or a name that is free")


def _waiting(jobs: Sequence[Job], manifest: Manifest, tell: Callable[[str], None]) -> list[Job]:
    """Return the jobs with a missing or outdated video, as copies with the option `overwrite` set. Raises InputError
    for an existing video that is not in the manifest."""
    waiting = []
    for job in jobs:
        if job not in manifest:
            refuse_existing(job.video(manifest.folder), job.options.overwrite)
        if not manifest.is_current(job, tell):
            waiting.append(replace(job, options=replace(job.options, overwrite=True)))
    return waiting


def _plan(
    waiting: Sequence[Job], folder: Path, tell: Callable[[str], None]
) -> tuple[list[tuple[AnyPlan, list[SeededJob]]], list[Outcome]]:
    """Divide jobs into groups that run together. Return each group as the plan of one job, with all jobs of the group.
    Also return the outcomes of jobs that could not be planned. `tell(message)` gets notes of the plans."""
    alike: dict[str, list[SeededJob]] = {}
    plans: dict[str, AnyPlan] = {}
    failed: list[Outcome] = []
    notes: dict[str, list[str]] = {}
    files = OpenFiles()
    for job in waiting:
        seeded = SeededJob(job, secrets.randbits(32) if job.options.seed is None else job.options.seed)
        try:
            plan = make_plan(_with_camera(job, folder), files)
        except (LingBotError, OSError) as error:
            failed.append(Outcome(job, seeded.seed, error=str(error)))
            continue
        own = ("image", "prompt", "negative", "seed", "camera", "fps")  # may differ between jobs of a group
        settings = {name: value for name, value in job.settings().items() if name not in own}
        size, camera = plan.geometry, isinstance(plan, SamplingPlan) and plan.camera is not None
        key = json.dumps([settings, size.width, size.height, size.frames, camera], sort_keys=True)
        alike.setdefault(key, []).append(seeded)
        plans[key] = plan
        for note in plan.notes:
            notes.setdefault(note, []).append(job.name)
    for note, names in notes.items():
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        tell(f"{', '.join(names[:MAX_NAMES])}{more}: {note}")
    groups = [
        (plans[key], group[start : start + VIDEOS_AT_ONCE])
        for key, group in alike.items()
        for start in range(0, len(group), VIDEOS_AT_ONCE)
    ]
    return groups, failed


def _with_camera(job: Job, folder: Path) -> GenerateOptions:
    """Return a job's options, with any camera path in `action_path`. The path of a `preset` or of `keys` is first
    written into `folder`."""
    if job.camera is None or job.camera[0] == "action_path":
        return job.options
    kind, text = job.camera
    path = make_path(kind, text, job.options.frame_num)
    poses = folder / "cameras" / job.name
    write_lingbot(path, poses)
    return replace(job.options, action_path=poses)


def run_group(
    group: list[SeededJob], folder: Path, cache: ModelCache, show: ShowProgress = silent
) -> Iterator[Outcome]:
    """Make the videos of a group of jobs together, and yield each outcome. After an error, retry each unfinished job
    once, alone."""
    left, begun = list(group), time.perf_counter()
    try:
        for seeded in _make_videos(group, folder, cache, show):
            now = time.perf_counter()
            yield Outcome(seeded.job, seeded.seed, now - begun)
            begun = now
            left.remove(seeded)
    except (LingBotError, OSError, torch.OutOfMemoryError) as error:
        cache.drop()
        if len(group) == 1:
            yield Outcome(group[0].job, group[0].seed, error=str(error).splitlines()[0])
            return
        for seeded in left:
            yield from run_group([seeded], folder, cache, show)


def _make_videos(group: list[SeededJob], folder: Path, cache: ModelCache, show: ShowProgress) -> Iterator[SeededJob]:
    given = (replace(_with_camera(seeded.job, folder), seed=seeded.seed) for seeded in group)
    plans = [make_plan(options, cache.files) for options in given]
    base = [plan for plan in plans if isinstance(plan, SamplingPlan)]
    if not base:
        for seeded, plan in zip(group, plans, strict=True):
            run(plan, show)
            yield seeded
        return
    with ExitStack() as taken, StageRecorder(base[0].device, show) as stages:
        for plan in base:
            taken.enter_context(lock_outputs(plan))
        cache.prepare(base[0])
        for seeded, plan, latent in zip(group, base, _sample(base, stages, cache), strict=True):
            frames = decode(plan, latent, stages.begin("VAE decode", "chunk"), cache.vae(plan))
            target = with_recipe(plan, seeded.seed).target
            write_frames(frames.numpy(), target, plan.options.fps, stages.begin("write", "frame"))
            yield seeded


def _sample(plans: list[SamplingPlan], stages: StageRecorder, cache: ModelCache) -> list[Tensor]:
    """Return each plan's sampled latent, [1, 16, f, h, w], on the CPU."""
    first = plans[0]
    prompts = _encode_prompts(plans, stages)
    encoded = [condition_on_image(plan, stages.begin("VAE encode", "chunk"), cache.vae(plan)).cpu() for plan in plans]
    residency = choose_residency(
        first.sampling_work(), first.memory_options, first.device, cache.free_without_experts(first.device)
    )
    videos = []
    for plan, y in zip(plans, encoded, strict=True):
        assert plan.options.seed is not None  # seeds were drawn earlier
        noise = draw_noise(plan.geometry, torch.Generator(plan.options.noise_device).manual_seed(plan.options.seed))
        given = partial(conditioning, plan, y, [prompts[text] for text in texts_of(plan)])  # freed with its last step
        videos.append(Video(noise.to(plan.device), given, StepReuse(first.options.reuse_threshold)))
    return [latent.cpu() for latent in run_steps(first, videos, stages, residency, keep=cache.expert)]


def _encode_prompts(plans: list[SamplingPlan], stages: StageRecorder) -> dict[str, Tensor]:
    """Encode all prompts of the plans. Return a dict from each prompt to its embedding, [1, L, D] on the CPU."""
    texts = list(dict.fromkeys(text for plan in plans for text in texts_of(plan)))
    found: dict[str, Tensor] = {}
    for start in range(0, len(texts), PROMPTS_AT_ONCE):
        part = texts[start : start + PROMPTS_AT_ONCE]
        rows = encode_prompts(part, plans[0], stages.begin("text", "block"))
        found |= {text: row.cpu() for text, row in zip(part, rows, strict=True)}
    return found
