"""`python -m lingbot_world.tools.maze OUT PART`: trains a part of the toy, for `--minutes`, and measures it.

PART is vae, then denoiser. What OUT has of an earlier run of it is trained on. Writes checkpoints and log.jsonl."""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
import torch._dynamo
from torch import Tensor

from ..toyworld.fit import Log, Phase
from ..toyworld.parameters import Parameters, Weights, keep, load_weights, save_weights
from ..toyworld.pool import pictures_of
from ..toyworld.prompts import embeddings
from .coder_training import SHAPES as VAE_SHAPES
from .coder_training import normalised, train_coder
from .denoiser import SHAPES, Given, train_denoiser
from .pool import Pool, encoded, later_walks, settled, walks
from .rooms import CAPTIONS, WORDS, random_scenes
from .settings import TINY, Sizes
from .walks import random_walks

HELD_OUT = 987_654_321
WALK_SEED = 1_000_000
RENDERED = 0.15
"""The share of the denoiser's time after which no more walks are rendered."""
AT_ONCE = 512
MEASURED = 33
"""Frames of the videos that the VAE is measured with."""


def main() -> None:
    """The command."""
    options = _parser().parse_args()
    options.begun = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.recompile_limit = 64
    device, sizes = torch.device(options.device), TINY if options.tiny else Sizes()
    log = Log(options.out / "log.jsonl", options.begun)
    log.write(part=options.part, seed=options.seed, minutes=options.minutes, torch=torch.__version__)
    (vae_part if options.part == "vae" else denoiser_part)(options, sizes, device, log)


def vae_part(options: argparse.Namespace, sizes: Sizes, device: torch.device, log: Log) -> None:
    """Trains the VAE; its latents get Wan's mean and deviation."""
    start = Parameters.resumed(options.out, "vae", VAE_SHAPES, options.seed, device)
    trained = train_coder(start, _left(options), sizes, options.seed, options.rate, log)
    trained = normalised(trained, sizes, options.seed + 50_000)
    save_weights(trained.stored(torch.float32), options.out / "vae.pt")
    weights = {name: tensor.detach() for name, tensor in trained.named().items()}
    log.write(measured="vae", **measured_vae(weights, sizes, device))


@torch.no_grad()
def measured_vae(weights: Weights, sizes: Sizes, device: torch.device) -> dict[str, float]:
    """PSNR of what the VAE makes of videos that it has not seen: of first frames, and of later ones."""
    frames = min(MEASURED, 8 * sizes.half - 3)
    scenes = random_scenes(min(32, sizes.held_out), HELD_OUT, frames, random_walks).to(device)
    pictures, latent = encoded(weights, scenes, sizes)
    error = ((pictures_of(weights, latent, sizes) - pictures) / 2).square().mean((2, 3, 4))
    return {"first": decibels(error[:, 0].mean()), "later": decibels(error[:, 1:].mean())}


def decibels(error: Tensor) -> float:
    """Of a mean square error of colours from 0 to 1."""
    return round(float(-10 * torch.log10(error.clamp(min=1e-10))), 2)


def denoiser_part(options: argparse.Namespace, sizes: Sizes, device: torch.device, log: Log) -> None:
    """Trains the denoiser on walks that are rendered first."""
    vae, texts = load_weights(options.out / "vae.pt", device), embeddings(CAPTIONS, WORDS).to(device)
    data = rendered(vae, texts, options, sizes, device)
    log.write(phase="walks", count=len(data.walks), later=len(data.later))
    start = Parameters.resumed(options.out, "denoiser", SHAPES, options.seed, device)
    kept = partial(keep, options.out / "denoiser.pt")
    train_denoiser(start, _left(options), data, sizes, options.rate, log, kept, options.seed)


def rendered(vae: Weights, texts: Tensor, options: argparse.Namespace, sizes: Sizes, device: torch.device) -> Given:
    """Walks as latents, until there are enough, or their share of the time is over."""
    made: tuple[list[Pool], list[Pool]] = ([], [])
    phase, most = Phase(RENDERED * options.minutes, options.steps and 1), options.walks or sizes.walks
    at_once = min(AT_ONCE, most // 2)
    while not made[0] or (phase.progress(len(made[0])) < 1 and len(made[0]) * at_once * 2 < most):
        seed = WALK_SEED * options.seed + 10 * len(made[0])
        for into, render_some in zip(made, (walks, later_walks), strict=True):
            into.append(render_some(vae, at_once, seed, sizes, device))
    return Given(texts, settled(vae, sizes, device), *map(Pool.joined, made))


def _left(options: argparse.Namespace) -> Phase:
    """The phase that ends with the command's minutes."""
    return Phase(max(0.01, options.minutes - (time.time() - options.begun) / 60), options.steps, options.hold)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.maze", description=__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder for checkpoints and log")
    add("part", choices=("vae", "denoiser"))
    add("--minutes", type=float, default=9.0, help="for the whole part")
    add("--rate", type=float, default=1.0, help="factor on the learning rates; smaller to go on with what is trained")
    add("--hold", type=float, default=0.0, help="share of the time at the full learning rate; then it falls")
    add("--walks", type=int, help="to render at most, instead of the sizes' own")
    add("--seed", type=int, default=1)
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--steps", type=int, help="so many steps instead of minutes; with --tiny a test on a CPU")
    add("--tiny", action="store_true", help="small pictures, short videos and small batches")
    return parser


if __name__ == "__main__":
    main()
