"""Train and measure a part of the toy: `python -m lingbot_world.tools.toy OUT PART`.

PART is vae, denoiser (with the shipped VAE if OUT has none) or decoder. A part that OUT has is trained on."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from .train import PARTS, work


def main() -> None:
    options = _parser().parse_args()
    options.begun = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    work(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toy", description=__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder for checkpoints and log")
    add("part", choices=tuple(PARTS))
    add("--minutes", type=float, default=9.0, help="for the whole part; of decoder for the steps alone")
    add("--rate", type=float, default=1.0, help="factor on the learning rates; smaller to go on with what is trained")
    add("--hold", type=float, default=0.0, help="share of the time at the full learning rate; then it falls")
    add("--shipped", action="store_true", help="with the shipped denoiser, where OUT has none")
    add("--adversary", type=float, default=0.0, help="the length of an adversary's gradient against the denoiser's own")
    add("--walks", type=int, help="to render at most, instead of the sizes' own")
    add("--seed", type=int, default=1)
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--steps", type=int, help="so many steps instead of minutes; with --tiny a test on a CPU")
    add("--tiny", action="store_true", help="small pictures, short videos and small batches")
    return parser


if __name__ == "__main__":
    main()
