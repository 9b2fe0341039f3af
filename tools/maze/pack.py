"""`python -m lingbot_world.tools.maze.pack CHECKPOINTS DEST`: the trained maze as a package that the engine runs.

Both experts and the causal model are the one denoiser: the experts in 4 bits, the causal model in bf16."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ...camera.moves.presets import preset_path
from ...quantize.writer import config_json, write_json
from ...toy.experts import write_expert
from ...toy.package import CAUSAL, EXAMPLE
from ..toyworld import pack
from ..toyworld.parameters import lacking, load_weights
from ..toyworld.paths import FRAMES
from ..toyworld.render import LENS
from .render import HEIGHT, WIDTH, render
from .rooms import WORDS, Scenes, scenes_around
from .settings import CONFIG

CHECKPOINTS = "vae", "denoiser"
EXAMPLE_SEED = 3_000_000_036
"""Of the example's house, which no training has seen."""
EXAMPLE_MOVE = "pan_right", 40.0


def write_package(checkpoints: Path, folder: Path) -> None:
    """Experts, causal model, VAE, text encoder, tokenizer and an example into a folder, which is made."""
    vae, weights = (load_weights(checkpoints / f"{name}.pt") for name in CHECKPOINTS)
    pack.write_package(folder, vae, weights, weights, config=CONFIG, words=WORDS)
    config, causal = replace(CONFIG, causal=True), folder / CAUSAL
    causal.mkdir()
    write_expert(causal / "diffusion_pytorch_model.safetensors", config, weights.items(), quant_type=None)
    write_json(causal / "config.json", config_json(config))
    write_example(folder / EXAMPLE)


def example() -> Scenes:
    """The example's house, and its camera's path."""
    path = preset_path(EXAMPLE_MOVE[0], frames=FRAMES, amount=EXAMPLE_MOVE[1])
    poses = torch.tensor(path.c2w[None]).float()
    return scenes_around(poses, torch.Generator().manual_seed(EXAMPLE_SEED))


def write_example(folder: Path) -> None:
    """First frame, prompt and camera path of a house, into a new folder."""
    folder.mkdir()
    scene = example()
    picture = render(scene.rooms, scene.c2w[:, :1], 2 * HEIGHT, 2 * WIDTH)[0, 0]
    pixels = ((picture + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(folder / "image.png", optimize=True)
    np.save(folder / "poses.npy", (torch.linalg.inv(scene.c2w[0, :1]) @ scene.c2w[0]).numpy())
    np.save(folder / "intrinsics.npy", np.tile(LENS, (FRAMES, 1)).astype(np.float32))
    (folder / "prompt.txt").write_text(scene.rooms.captions()[0] + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.maze.pack", description=__doc__)
    parser.add_argument("checkpoints", type=Path, help="folder with vae.pt and denoiser.pt")
    parser.add_argument("destination", type=Path, help="the package's folder, which must not be there yet")
    options = parser.parse_args()
    if problem := lacking(options.checkpoints, CHECKPOINTS):
        parser.error(problem)
    if options.destination.exists():
        parser.error(f"{options.destination} exists already; name a folder that does not, or remove it")
    write_package(options.checkpoints, options.destination)


if __name__ == "__main__":
    main()
