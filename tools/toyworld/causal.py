"""`python -m lingbot_world.tools.toyworld.causal OUT`: makes a causal model of the toy's low-noise expert.

Renders walks of 117 frames, trains for `--minutes` in all, and measures. Writes causal.pt, log.jsonl and sheet.png into
OUT. On one GPU, or slowly on a CPU."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...options import FAST_INDICES
from ...sampling import few_step_schedule
from ...toy.causal import causal_start
from .camera_map import camera_patches
from .causal_training import SHAPES, rollout, train_causal, with_change
from .evaluate import HeldOut, generate, held_out, measured, sheet
from .expert_training import image_conditioning
from .fit import Log, Phase
from .parameters import Parameters, Weights, keep, lacking
from .paths import FRAMES, random_walks
from .pool import Pool, encoded, pictures_of
from .prompts import embeddings
from .rooms import random_scenes
from .settings import TINY, Sizes, compute_dtype
from .shipped import PARTS, shipped

WALKS = Sizes(frames=117, fill=32, encoded=8, batch=32, held_out=64)
SEED = 300_000_000
RENDERED, LEAST = 0.25, 1024
"""The share of the time after which no more videos are rendered, but so many are in any case."""
MEASURING = 40.0
"""Seconds at the end."""
SHIFTS = (5.0, 10.0)
"""Of the schedules that it is measured with: the base model's, and the causal models' own."""
SECOND = 16
WALKED = 16
CHECKPOINT = "causal"


def work(options: argparse.Namespace) -> None:
    """What the command does."""
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(1 if options.device == "cpu" else 4)
    device = torch.device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log(options.out / "log.jsonl", options.begun)
    sizes = replace(TINY, frames=21) if options.tiny else WALKS
    low, high, vae = shipped(device, options.package)
    expert = causal_start(low)
    texts = embeddings().to(device)
    pool = walks(vae, _until(options, RENDERED), sizes, SEED * options.seed, device)
    log.write(phase="pool", videos=len(pool), torch=torch.__version__)
    start = Parameters.resumed(options.resume, CHECKPOINT, SHAPES, options.seed, device)
    kept = partial(keep, options.out / f"{CHECKPOINT}.pt")
    trained = train_causal(expert, start, _until(options, 1.0), pool, texts, sizes, options.rate, log, kept)
    model = {name: weight.detach() for name, weight in with_change(expert, trained.named()).items()}
    _measure(model, (high, low), vae, texts, replace(sizes, held_out=options.held_out), options.out, log)


def _until(options: argparse.Namespace, share: float) -> Phase:
    """The phase that ends at this share of the time without the measuring."""
    end = share * (60 * options.minutes - MEASURING) - (time.time() - options.begun)
    return Phase(max(end / 60, 0.01), options.steps)


@torch.no_grad()
def walks(vae: Weights, phase: Phase, sizes: Sizes, seed: int, device: torch.device) -> Pool:
    """Random walks as latents, until the phase ends and there are enough."""
    made: list[Pool] = []
    least = 1 if phase.steps else LEAST
    while len(made) * sizes.fill < least or phase.progress(len(made)) < 1:
        scenes = random_scenes(sizes.fill, seed + 1000 * len(made), sizes.frames, random_walks)
        made.append(encoded(vae, scenes.to(device), sizes)[0])
    return Pool.joined(made)


@torch.no_grad()
def _measure(
    model: Weights,
    experts: tuple[Weights, Weights],
    vae: Weights,
    texts: Tensor,
    sizes: Sizes,
    out: Path,
    log: Log,
) -> None:
    """Short videos beside those of the experts, and walks."""
    if not sizes.held_out:
        return
    device = texts.device
    short = replace(sizes, frames=TINY.frames if sizes.frames < FRAMES else FRAMES)
    scenes = held_out(vae, texts, replace(short, encoded=WALKS.encoded), device)
    still = scenes.pictures[:, :1].expand_as(scenes.pictures)
    long = held_out(vae, texts, replace(sizes, held_out=min(WALKED, sizes.held_out)), device, random_walks)
    _note(log, "the renderer, walks", long.pictures, long)
    _note(log, "first frame copied", still, scenes)
    _note(log, "experts, 8 steps", _pictures(generate(*experts, scenes, steps=8), scenes), scenes)
    for shift in SHIFTS:
        _note(log, f"causal, shift {shift:g}", _made(model, scenes, shift), scenes)
        made = _made(model, long, shift)
        _note(log, f"causal, walks, shift {shift:g}", made, long)
    _note(log, "another's camera", _made(model, scenes, SHIFTS[-1], scenes.pool.poses.roll(1, 0)), scenes)
    sheet(long.pictures, made, out / "sheet.png")


def _made(weights: Weights, scenes: HeldOut, shift: float, poses: Tensor | None = None) -> Tensor:
    """The scenes' pictures by the causal model in four steps."""
    device = scenes.pictures.device
    camera = camera_patches(scenes.pool.poses if poses is None else poses, scenes.rays)
    dtype = compute_dtype(device)
    latent = rollout(
        weights,
        image_conditioning(scenes.pool.first.float()),
        scenes.context,
        camera,
        few_step_schedule(FAST_INDICES, shift),
        torch.Generator(device).manual_seed(7),
        dtype,
    )
    return _pictures(latent, scenes)


def _pictures(latent: Tensor, scenes: HeldOut) -> Tensor:
    return pictures_of(scenes.vae, latent, scenes.sizes)


def _note(log: Log, name: str, pictures: Tensor, scenes: HeldOut) -> None:
    energy = gradient_energy(pictures)
    sharpness = float(energy[-SECOND:].mean() / energy[:SECOND].mean())
    log.write(
        measured=name,
        sharpness=round(sharpness, 3),
        energy=round(float(energy[:SECOND].mean()) * 1e3, 3),
        **{key: round(value, 2) for key, value in measured(pictures, scenes).items()},
    )


def gradient_energy(pictures: Tensor) -> Tensor:
    """The mean square of the differences between neighbouring pixels [f] of pictures [n, f, 3, h, w]."""
    across, down = pictures.diff(dim=-1).square(), pictures.diff(dim=-2).square()
    return across.mean((0, 2, 3, 4)) + down.mean((0, 2, 3, 4))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toyworld.causal", description=__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder for checkpoints, log and sheet")
    add("--resume", type=Path, help="folder with an earlier run's causal.pt, to go on with")
    add("--package", type=Path, help="folder of `toyworld.pack` with the experts; default: the ones that are shipped")
    add("--minutes", type=float, default=8.0, help="for everything")
    add("--rate", type=float, default=1.0, help="factor on the learning rates")
    add("--held_out", type=int, default=64, help="scenes to measure with at the end; 0 measures nothing")
    add("--seed", type=int, default=1)
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--steps", type=int, help="so many steps instead of minutes; with --tiny a test on a CPU")
    add("--tiny", action="store_true", help="small pictures, short videos and small batches")
    options = parser.parse_args()
    if options.resume is not None and not (options.resume / f"{CHECKPOINT}.pt").is_file():
        parser.error(f"--resume {options.resume}: no {CHECKPOINT}.pt in it")
    if options.package is not None and (problem := lacking(options.package, PARTS, "")):
        parser.error(f"--package {problem}; `toyworld.pack` writes such a folder")
    options.begun = time.time()
    work(options)


if __name__ == "__main__":
    main()
