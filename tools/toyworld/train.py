"""A whole training in this process and its like: the VAE, the videos, the experts, the package, the measurements."""

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from . import coder_training, expert_training
from .evaluate import held_out, measured, sheet, ways
from .fit import Log, Phase
from .pack import archive, write_package
from .parameters import Parameters, keep, load_weights, save_weights
from .pool import Pool, fill
from .prompts import embeddings
from .settings import EXPERTS, TINY, Sizes
from .team import Team, join


def work(rank: int, size: int, options: argparse.Namespace) -> None:
    """What process `rank` of `size` does; `options` are the command's."""
    torch.manual_seed(options.seed + rank)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1 if options.device == "cpu" else 4)
    everyone, teams = join(rank, size, options.device, 29_400 + int(options.begun) % 500)
    log = Log(options.out / "log.jsonl" if everyone.leads else None, options.begun)
    sizes = replace(TINY, held_out=min(2, options.held_out)) if options.tiny else Sizes(held_out=options.held_out)
    log.write(processes=size, torch=torch.__version__)
    texts = embeddings().to(everyone.device)
    vae = _coder(everyone, options, sizes, log)
    if options.expert_minutes:
        _experts(everyone, teams, options, sizes, vae, texts, log)
    elif everyone.leads:
        _take_experts(options.resume, options.out)
    if everyone.leads:
        _finish(options, sizes, vae, texts, everyone.device, log)
    everyone.wait()


def _coder(team: Team, options: argparse.Namespace, sizes: Sizes, log: Log) -> dict[str, Tensor]:
    """The VAE's weights, trained or resumed."""
    start = Parameters.resumed(options.resume, "vae", coder_training.SHAPES, options.seed, team.device)
    if options.vae_minutes:
        phase = Phase(options.vae_minutes, options.steps)
        start = coder_training.train_coder(start, team, phase, sizes, options.seed, options.rate, log)
        start = coder_training.normalised(start, team, sizes, options.seed + 50_000)
    if options.decoder_minutes:
        phase = Phase(options.decoder_minutes, options.steps)
        start = coder_training.train_decoder(start, team, phase, sizes, options.seed + 70_000, options.rate, log)
    if team.leads:
        save_weights(start.stored(torch.float32), options.out / "vae.pt")
    return {name: tensor.detach() for name, tensor in start.named().items()}


def _experts(
    everyone: Team,
    teams: list[Team | None],
    options: argparse.Namespace,
    sizes: Sizes,
    vae: dict[str, Tensor],
    texts: Tensor,
    log: Log,
) -> None:
    """Trains this process's experts, one after the other where it has both; writes their checkpoints."""
    pool: Pool = fill(vae, everyone, Phase(options.fill_minutes, options.steps and 1), sizes, options.seed + 200_000)
    log.write(phase="pool", videos=len(pool))
    own = [(name, team) for name, team in zip(EXPERTS, teams, strict=True) if team is not None]
    for number, (name, team) in enumerate(own):
        left = (options.minutes * 60 - 50 - (time.time() - options.begun)) / 60 / (len(own) - number)
        phase = Phase(max(0.01, min(options.expert_minutes / len(own), left)), options.steps, options.hold)
        start = Parameters.resumed(options.resume, name, expert_training.SHAPES, options.seed, team.device)
        noted = Log(options.out / f"log_{name}.jsonl" if team.leads else None, options.begun)
        kept = partial(keep, options.out / f"{name}.pt") if team.leads else None
        expert_training.train_expert(name == "high", start, team, phase, pool, texts, sizes, options.rate, noted, kept)
    everyone.wait()


def _take_experts(start: Path, out: Path) -> None:
    """Copies the experts that go with this run's VAE over those that an earlier run has left in its folder."""
    for name in EXPERTS:
        save_weights(torch.load(start / f"{name}.pt", map_location="cpu", weights_only=True), out / f"{name}.pt")


def _finish(
    options: argparse.Namespace, sizes: Sizes, vae: dict[str, Tensor], texts: Tensor, device: torch.device, log: Log
) -> None:
    """The package and what was measured."""
    high, low = (load_weights(options.out / f"{name}.pt", device) for name in EXPERTS)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "package")
        write_package(package, vae, high, low)
        archive(package, options.out / "package.tar.gz")
    log.write(phase="packed", bytes=(options.out / "package.tar.gz").stat().st_size)
    if not sizes.held_out:
        return
    scenes = held_out(vae, texts, sizes, device)
    for name, pictures in ways(high, low, scenes):
        log.write(measured=name, **{key: round(value, 2) for key, value in measured(pictures, scenes).items()})
        if name == "both experts":
            sheet(scenes.pictures, pictures, options.out / "sheet.png")
