"""`python -m lingbot_world.toyworld.rounding CHECKPOINTS OUT`: trains experts on for the 4 bits they are shipped in.

In the forward each weight is what `quantize --search` makes of it; gradients go to the weight that was rounded. The
target is what the expert says with its own weights. Writes high.pt and low.pt into OUT."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from .evaluate import rounded
from .expert_training import SHAPES, drawn
from .fit import Log, Phase, fit
from .pack import QUANTIZED
from .parameters import Parameters, load_weights
from .pool import Pool, Weights, encoded
from .prompts import embeddings
from .rooms import random_scenes
from .settings import CONFIG, TINY, Sizes
from .team import Team
from .twin import velocity

RATE = 1.5e-4
ROUNDING_SIZES = Sizes(frames=17, fill=4, encoded=4, batch=4)
ROUNDING_SEED = 800_000
VIDEOS = 24


def train_rounded(high: bool, expert: Weights, pool: Pool, texts: Tensor, sizes: Sizes, phase: Phase, log: Log
                  ) -> Parameters:  # fmt: skip
    """The expert with weights that lose less when they are rounded. texts: the embeddings of `prompts`."""
    team = Team(torch.device("cpu"), (0,), 0)
    random = torch.Generator().manual_seed(3000 + high)

    def loss(weights: Weights, _progress: float) -> Tensor:
        inputs = drawn(high, pool, texts, sizes, random).inputs
        with torch.no_grad():
            wanted = velocity(expert, CONFIG, *inputs)
        return F.mse_loss(velocity(straight_through(weights), CONFIG, *inputs), wanted)

    start = Parameters.of(expert, SHAPES, team.device)
    return fit("nf4, high" if high else "nf4, low", start, loss, team, phase, RATE, log, most_decay=0.95)


def straight_through(weights: Weights) -> Weights:
    """The weights as they come back from the package's file; gradients reach the weights themselves."""
    changed = dict(weights)
    for name in QUANTIZED:
        weight = weights[name]
        changed[name] = weight + (rounded(weight.detach(), search=True) - weight).detach()
    return changed


def work(options: argparse.Namespace) -> None:
    """What the command does."""
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = replace(TINY, fill=2) if options.tiny else ROUNDING_SIZES
    log = Log(options.out / "log_rounding.jsonl", time.time())
    texts, vae = embeddings(), load_weights(options.checkpoints / "vae.pt")
    starts = range(0, 2 if options.tiny else VIDEOS, sizes.fill)
    scenes = (random_scenes(sizes.fill, options.seed * ROUNDING_SEED + start, sizes.frames) for start in starts)
    pool = Pool.joined([encoded(vae, some, sizes)[0] for some in scenes])
    log.write(phase="pool", videos=len(pool))
    for name in ("high", "low"):
        phase, expert = Phase(options.minutes, options.steps), load_weights(options.checkpoints / f"{name}.pt")
        trained = train_rounded(name == "high", expert, pool, texts, sizes, phase, log)
        torch.save(trained.stored(torch.bfloat16), options.out / f"{name}.pt")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.toyworld.rounding", description=__doc__)
    add = parser.add_argument
    add("checkpoints", type=Path, help="folder with vae.pt, high.pt and low.pt")
    add("out", type=Path, help="folder for the new high.pt and low.pt")
    add("--minutes", type=float, default=10.0, help="for each expert; on the CPU, one thread")
    add("--steps", type=int, help="so many steps instead of minutes")
    add("--seed", type=int, default=1)
    add("--tiny", action="store_true", help="small pictures and short videos, for a test")
    torch.set_num_threads(1)
    work(parser.parse_args())


if __name__ == "__main__":
    main()
