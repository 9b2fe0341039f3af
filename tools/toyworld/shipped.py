"""`python -m lingbot_world.tools.toyworld.shipped OUT`: the trained toy's parts as checkpoints, for `--resume`.

Writes vae.pt, high.pt, low.pt and causal.pt: the experts' 4-bit weights as they are decoded, in bf16."""

import argparse
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from ...loaders import open_checkpoint
from ...toy import write_toy_world
from ...toy.causal import expert_weights
from ...toy.world import CHANGE
from .pack import PREFIX, VAE
from .parameters import Weights, load_weights, save_weights

EXPERT_FOLDERS = "low_noise_model_bnb_nf4", "high_noise_model_bnb_nf4"
PARTS = *EXPERT_FOLDERS, VAE
"""What is taken from a package."""


def shipped(device: torch.device, package: Path | None = None) -> tuple[Weights, Weights, Weights]:
    """The low-noise expert, the high-noise one and the VAE of the package that is shipped, or of `package`, a folder
    that `toyworld.pack` has written."""
    if package is not None:
        return _parts(package, device)
    with tempfile.TemporaryDirectory() as name:
        return _parts(write_toy_world(name), device)


def _parts(folder: Path, device: torch.device) -> tuple[Weights, Weights, Weights]:
    experts = (expert_weights(open_checkpoint(folder / name)) for name in EXPERT_FOLDERS)
    low, high = ({key: weight.clone().to(device) for key, weight in part.items()} for part in experts)
    return low, high, load_weights(folder / VAE, device)


def write_checkpoints(folder: Path) -> None:
    """The shipped parts as a training keeps them, into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        package = write_toy_world(name)
        low, high, vae = _parts(package, torch.device("cpu"))
        change = {key.removeprefix(PREFIX): tensor.clone() for key, tensor in load_file(package / CHANGE).items()}
    experts = {
        part: {key: weight.bfloat16() for key, weight in weights.items()}
        for part, weights in {"high": high, "low": low}.items()
    }
    for part, weights in {"vae": vae, **experts, "causal": change}.items():
        save_weights(weights, folder / f"{part}.pt")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toyworld.shipped", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the checkpoints")
    write_checkpoints(parser.parse_args().out)


if __name__ == "__main__":
    main()
