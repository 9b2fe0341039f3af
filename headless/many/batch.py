"""The command `lingbot-world batch`: make many videos, and record the outcome of each in a manifest file. Videos of one
size are made together, so that each expert is loaded only once for all of them. Finished jobs are skipped. If a job
fails, the batch goes on."""

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
from ..plan import AnyPlan, SamplingPlan, make_plan
from ..process.profile import StageRecorder, silent
from ..run import lock_outputs, run, with_recipe
from ..stages import condition_on_image, conditioning, decode, draw_noise, encode_prompts, run_steps, texts_of
from .jobs import Job
from .manifest import Manifest, Outcome, lock_batch
from .model_cache import ModelCache, OpenFiles

VIDEOS_AT_ONCE = 8
"""At most this many videos are sampled together before the first of them is decoded and written. If the batch is
stopped, at most these videos are lost."""
PROMPTS_AT_ONCE = 8
MOST_NAMES = 3
"""A message names at most this many jobs."""


@dataclass(frozen=True)
class SeededJob:
    """A job and the seed of its noise, which is random if the job sets none."""

    job: Job
    seed: int


@dataclass(frozen=True)
class Counts:
    """The numbers of jobs: `done` by this run, `skipped` because an earlier run finished them, and `failed`."""

    done: int
    skipped: int
    failed: int


RunGroups = Callable[[list[list[SeededJob]], Path], Iterator[Outcome]]
"""A function run_groups(groups, folder) that makes the videos of groups of jobs in the batch's folder. It yields the
outcome of each job when the job ends."""


def run_batch(
    jobs: Sequence[Job],
    folder: Path,
    show: ShowProgress = silent,
    run_groups: RunGroups | None = None,
    tell: Callable[[str], None] = lambda _text: None,
    begin: Callable[[AnyPlan], str] = lambda _plan: "",
) -> Counts:
    """Make the missing and the outdated videos of a batch in `folder`, and record each outcome in the batch's manifest.
    Return the numbers of jobs that were done, skipped and failed.

    show: a function show(name, unit) that returns the progress display of a stage.
    run_groups: the function that makes the videos, by default in this process.
    tell: a function tell(message) that is called with notes and reasons of failures.
    begin: a function begin(plan) that is called before each group in this process. It may set torch's number of threads
        for the group, and returns a note or "".

    Raises InputError if `folder` is a file or in use. Also raises InputError if a job without `overwrite` has a video
    but no row in the manifest.
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
        here = _run_here(planned, folder, show, tell, begin)
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
    begin: Callable[[AnyPlan], str],
) -> Iterator[Outcome]:
    """Make the videos of all groups in this process, and yield the outcome of each job. The arguments are those of
    `run_batch`; `planned` is the result of `_plan`. Equal notes of `begin` are passed to `tell` only once."""
    cache, threads, told = ModelCache(), torch.get_num_threads(), {""}
    for plan, group in planned:
        torch.set_num_threads(threads)
        if (note := begin(plan)) not in told:
            tell(note)
            told.add(note)
        yield from run_group(group, folder, cache, show)


@contextmanager
def _note_unfinished(waiting: Sequence[Job], manifest: Manifest) -> Iterator[None]:
    """At the end of this context, record each job that has a video but no row in the manifest as failed: it was
    interrupted. Without a row, the next run would refuse to replace the job's video."""
    try:
        yield
    finally:
        for job in waiting:
            if job not in manifest and job.video(manifest.folder).exists():
                manifest.note(Outcome(job, 0, error="it was interrupted"))


def check_batch(jobs: Sequence[Job], folder: Path, tell: Callable[[str], None]) -> Counts:
    """Check every job of a batch without writing to `folder`, and return the expected counts of `run_batch`.
    `tell(message)` is called with notes, groups of jobs and expected failures.

    Raises InputError if `folder` is a file. Also raises InputError if a job without `overwrite` has a video but no row
    in the manifest.
    """
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
    """Return the jobs with a missing or outdated video. The returned copies have `overwrite` set, so that the outdated
    video may be replaced. `tell(message)` is called with the reason for each outdated video.

    Raises InputError if a job without `overwrite` has a video but no row in the manifest, because an earlier batch did
    not make this video.
    """
    waiting = []
    for job in jobs:
        if job not in manifest:
            refuse_existing(job.video(manifest.folder), job.options.overwrite)
        why = manifest.rerun_reason(job)
        if why:
            tell(f"{job.name}: {why}")
        if why is not None:
            waiting.append(replace(job, options=replace(job.options, overwrite=True)))
    return waiting


def _plan(
    waiting: Sequence[Job], folder: Path, tell: Callable[[str], None]
) -> tuple[list[tuple[AnyPlan, list[SeededJob]]], list[Outcome]]:
    """Divide the jobs `waiting` into groups that run together. Return the groups, each as (plan of one job, jobs), and
    the outcomes of jobs that cannot start.

    A group has at most VIDEOS_AT_ONCE jobs, which differ only in image, prompts, seed, camera path and fps.
    `tell(message)` is called with the plans' notes. Camera paths are written as pose folders within `folder`.
    """
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
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        tell(f"{', '.join(names[:MOST_NAMES])}{more}: {note}")
    groups = [
        (plans[key], group[start : start + VIDEOS_AT_ONCE])
        for key, group in alike.items()
        for start in range(0, len(group), VIDEOS_AT_ONCE)
    ]
    return groups, failed


def _with_camera(job: Job, folder: Path) -> GenerateOptions:
    """Return a job's options. A camera path from `preset` or `keys` is written as a pose folder within `folder`, which
    becomes `action_path`."""
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
    """Make the videos of a group of jobs together, and yield each outcome. After an error, each unfinished job runs
    alone, and its outcome is a failure if it fails again. `cache`: the models and open files of earlier groups."""
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
    """Make the videos of a group, and yield each job as soon as its video is written. Videos of causal models are made
    one after the other."""
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
    """Return the sampled latent of each plan, [1, 16, f, h, w] on the CPU."""
    first = plans[0]
    prompts = _encode_prompts(plans, stages)
    encoded = [condition_on_image(plan, stages.begin("VAE encode", "chunk"), cache.vae(plan)).cpu() for plan in plans]
    residency = choose_residency(first.sampling_work(), first.memory_options, first.device, cache.free(first.device))
    videos = []
    for plan, y in zip(plans, encoded, strict=True):
        assert plan.options.seed is not None  # seeds were drawn earlier
        noise = draw_noise(plan.geometry, torch.Generator(plan.options.noise_device).manual_seed(plan.options.seed))
        given = partial(conditioning, plan, y, [prompts[text] for text in texts_of(plan)])  # freed with its last step
        videos.append(Video(noise.to(plan.device), given, StepReuse(first.options.reuse_threshold)))
    return [latent.cpu() for latent in run_steps(first, videos, stages, residency, keep=cache.expert)]


def _encode_prompts(plans: list[SamplingPlan], stages: StageRecorder) -> dict[str, Tensor]:
    """Return the embeddings, [1, L, D] each on the CPU, of the plans' prompts and negative prompts, by text."""
    texts = list(dict.fromkeys(text for plan in plans for text in texts_of(plan)))
    found: dict[str, Tensor] = {}
    for start in range(0, len(texts), PROMPTS_AT_ONCE):
        part = texts[start : start + PROMPTS_AT_ONCE]
        rows = encode_prompts(part, plans[0], stages.begin("text", "block"))
        found |= {text: row.cpu() for text, row in zip(part, rows, strict=True)}
    return found
