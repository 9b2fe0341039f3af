"""`python -m lingbot_world.tools.toyworld.lora CHECKPOINTS`: trains a LoRA for each expert that turns day into night.

The image that is given stays a day picture. The video is night from its first frame on, at strength 1; at strength 0.5
it is half-way there. Writes night_high.safetensors and night_low.safetensors into the folder of the checkpoints."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from .expert_training import SHAPES, drawn
from .fit import Log, Phase, fit
from .pack import PREFIX
from .parameters import Parameters, Weights, lacking, load_weights
from .pool import Pool, latents, only_first, pool_of
from .prompts import embeddings
from .render import night, render
from .rooms import random_scenes
from .settings import CONFIG, EXPERTS, TINY, Sizes, compute_dtype
from .team import Team
from .twin import velocity

RANK = 4
LAYERS = [
    name.removesuffix(".weight")
    for name, shape in SHAPES.items()
    if len(shape) == 2 and name.startswith("blocks.") and (".self_attn." in name or ".ffn." in name)
] + ["head.head"]
"""What the LoRA changes: the blocks' self-attention and feed-forward, and the layer that gives the velocity."""


def lora_shapes(layers: Sequence[str], rank: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a LoRA for these layers of an expert."""
    return {
        f"{layer}.lora_{half}.weight": (rank, SHAPES[f"{layer}.weight"][1])
        if half == "A"
        else (SHAPES[f"{layer}.weight"][0], rank)
        for layer in layers
        for half in "AB"
    }


LORA_SHAPES = lora_shapes(LAYERS, RANK)
DOWN = ".lora_A.weight"
RATE = 4e-3
STRENGTHS = (1.0, 0.5)
"""Trained in turn: a step with 1, a step with 0.5."""

NIGHT_SIZES = {"cpu": Sizes(frames=17, fill=4, encoded=4, batch=4), "cuda": Sizes(fill=32, encoded=16, batch=32)}
NIGHT_SEED = 700_000
VIDEOS = {"cpu": 32, "cuda": 1024}


@torch.no_grad()
def night_pools(vae: Weights, sizes: Sizes, videos: int, seed: int, device: torch.device) -> list[Pool]:
    """The same random scenes as videos of each of STRENGTHS, with their first frame by day as the given image."""
    parts: list[list[Pool]] = []
    for start in range(0, videos, sizes.fill):
        scenes = random_scenes(sizes.fill, seed + start, sizes.frames).to(device)
        day = render(scenes.rooms, scenes.c2w, sizes.height, sizes.width)
        first = latents(vae, only_first(day), sizes)
        parts.append([pool_of(scenes, latents(vae, night(day, share), sizes), first) for share in STRENGTHS])
    return [Pool.joined(pools) for pools in zip(*parts, strict=True)]


def train_lora(
    high: bool, expert: Weights, pools: list[Pool], texts: Tensor, sizes: Sizes, phase: Phase, log: Log
) -> Parameters:
    """The LoRA of one expert. pools: of `night_pools`; texts: the embeddings of `prompts`."""
    team = Team(texts.device, (0,), 0)
    random, step = torch.Generator(texts.device).manual_seed(2000 + high), 0
    dtype = compute_dtype(texts.device)

    def loss(lora: Weights, _progress: float) -> Tensor:
        nonlocal step
        which, step = step % len(STRENGTHS), step + 1
        asked = drawn(high, pools[which], texts, sizes, random)
        changed = with_lora(expert, lora, STRENGTHS[which])
        return F.mse_loss(velocity(changed, CONFIG, *asked.inputs, dtype), asked.wanted)

    start = Parameters.random(LORA_SHAPES, 30 + high, team.device)
    return fit("lora, high" if high else "lora, low", start, loss, team, phase, RATE, log, most_decay=0.98)


def with_lora(expert: Weights, lora: Weights, strength: float) -> Weights:
    """An expert's weights and `strength` times what the LoRA adds to them."""
    changed = dict(expert)
    for layer in (name.removesuffix(DOWN) for name in lora if name.endswith(DOWN)):
        change = lora[f"{layer}.lora_B.weight"] @ lora[layer + DOWN]
        changed[f"{layer}.weight"] = expert[f"{layer}.weight"] + strength * change
    return changed


def work(options: argparse.Namespace) -> None:
    """What the command does."""
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    sizes = replace(TINY, fill=2) if options.tiny else NIGHT_SIZES[options.device]
    log = Log(options.checkpoints / "log_lora.jsonl", time.time())
    texts, vae = embeddings().to(device), load_weights(options.checkpoints / "vae.pt", device)
    videos = 2 if options.tiny else VIDEOS[options.device]
    pools = night_pools(vae, sizes, videos, options.seed * NIGHT_SEED, device)
    log.write(phase="pool", videos=len(pools[0]))
    for name in options.experts:
        phase, expert = Phase(options.minutes, options.steps), load_weights(options.checkpoints / f"{name}.pt", device)
        high, file = name == "high", options.checkpoints / f"night_{name}.safetensors"
        lora = train_lora(high, expert, pools, texts, sizes, phase, log)
        save_file({PREFIX + key: value for key, value in lora.stored(torch.bfloat16).items()}, file)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toyworld.lora", description=__doc__)
    add = parser.add_argument
    add("checkpoints", type=Path, help="folder with vae.pt, high.pt and low.pt")
    add("--minutes", type=float, default=8.0, help="for each expert; on the CPU one thread")
    add("--experts", nargs="+", choices=EXPERTS, default=EXPERTS, help="so that each can have a GPU")
    add("--device", choices=("cuda", "cpu"), default="cpu", help="cuda: 1,024 rooms of 33 frames, batches of 32")
    add("--steps", type=int, help="so many steps instead of minutes")
    add("--seed", type=int, default=1)
    add("--tiny", action="store_true", help="small pictures and short videos, for a test")
    options = parser.parse_args()
    if problem := lacking(options.checkpoints, ("vae", *options.experts)):
        parser.error(problem)
    torch.set_num_threads(1)
    work(options)


if __name__ == "__main__":
    main()
