"""`python -m lingbot_world.tools.toyworld OUT`: trains the toy, writes checkpoints, a package, measurements."""

import argparse
import time
from pathlib import Path

import torch

from .settings import EXPERTS, MODELS
from .train import work


def main() -> None:
    """Starts a process for each GPU, or `--processes` on the CPU."""
    parser = _parser()
    options = parser.parse_args()
    _check(parser, options)
    options.begun = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    size = options.processes or (torch.cuda.device_count() if options.device == "cuda" else 1)
    if size == 1:
        work(0, 1, options)
    else:
        torch.multiprocessing.spawn(work, (size, options), size)


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command where `--resume` lacks what is to be taken from it: hours would begin from random weights."""
    found = [] if options.resume is None else [name for name in MODELS if (options.resume / f"{name}.pt").is_file()]
    if options.resume is not None and not found:
        parser.error(f"--resume {options.resume}: none of {', '.join(f'{name}.pt' for name in MODELS)} in it")
    for option, needed in (("vae_minutes", ("vae",)), ("expert_minutes", EXPERTS)):
        missing = [f"{name}.pt" for name in needed if name not in found]
        if not getattr(options, option) and missing:
            parser.error(f"--{option} 0: {' and '.join(missing)} is taken from --resume, and is not there")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toyworld", description=__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder for checkpoints, log, sheet and package")
    add("--resume", type=Path, help="folder with checkpoints of an earlier run: vae.pt, high.pt, low.pt; some or all")
    add("--vae_minutes", type=float, default=2.2, help="0 takes the VAE as it is in --resume")
    add("--decoder_minutes", type=float, default=0.0, help="then its decoder alone, so that experts stay valid")
    add("--fill_minutes", type=float, default=0.8, help="time for rendering and encoding the experts' videos")
    add("--expert_minutes", type=float, default=4.5, help="0 takes the experts as they are in --resume")
    add("--minutes", type=float, default=9.0, help="end of everything: the experts stop 50 seconds before")
    add("--rate", type=float, default=1.0, help="factor on the learning rates; smaller to go on with what is trained")
    add("--hold", type=float, default=0.0, help="share of the experts' time at the full learning rate; then it falls")
    add("--held_out", type=int, default=64, help="scenes to measure with at the end; 0 measures nothing")
    add("--seed", type=int, default=1)
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--processes", type=int, help="default: one for each GPU; 1 on the CPU")
    add("--steps", type=int, help="so many steps instead of minutes; with --tiny a test on a CPU")
    add("--tiny", action="store_true", help="small pictures, short videos and small batches")
    return parser


if __name__ == "__main__":
    main()
