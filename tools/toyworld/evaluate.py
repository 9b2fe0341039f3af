"""What the trained models can do on rooms and paths that they have not seen, in decibels; and a sheet of pictures.

`python -m lingbot_world.tools.toyworld.evaluate CHECKPOINTS` measures checkpoints again."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...model.quantized.codec import decode as decode_4bit
from ...model.quantized.codec import encode as encode_4bit
from ...quantize.writer import linear_weights
from ...sampling import flow_sigmas, flow_timesteps, is_high_noise, solve
from .camera_map import camera_patches, ray_patches
from .expert_training import image_conditioning
from .pack import QUANTIZED
from .parameters import Weights, lacking, load_weights
from .paths import random_paths
from .pool import Pool, encoded, pictures_of
from .prompts import NEGATIVE, embeddings
from .rooms import RandomPaths, random_scenes
from .settings import CONFIG, MODELS, SHIFT, Sizes, compute_dtype
from .twin import velocity

HELD_OUT = 987_654_321
STEPS = 20


@dataclass(frozen=True)
class HeldOut:
    """Scenes never trained on: as latents, as pictures, with their prompts' embeddings and those of no prompt."""

    pool: Pool
    pictures: Tensor
    context: Tensor
    negative: Tensor
    rays: Tensor
    vae: Weights
    sizes: Sizes


@torch.no_grad()
def held_out(
    vae: Weights, texts: Tensor, sizes: Sizes, device: torch.device, paths: RandomPaths = random_paths
) -> HeldOut:
    """The scenes of one seed, with such paths."""
    scenes = random_scenes(sizes.held_out, HELD_OUT, sizes.frames, paths).to(device)
    pool, pictures = encoded(vae, scenes, sizes)
    return HeldOut(
        pool,
        pictures,
        texts[pool.kinds],
        texts[NEGATIVE].expand(len(pool), -1, -1),
        ray_patches(sizes.height, sizes.width, device),
        vae,
        sizes,
    )


@torch.no_grad()
def generate(
    high: Weights,
    low: Weights,
    scenes: HeldOut,
    *,
    poses: Tensor | None = None,
    steps: int = STEPS,
    guidance: float = 1.0,
) -> Tensor:
    """Latents [n, 16, f, h, w] of the scenes from noise, by the engine's solver; with other `poses` if given."""
    camera = camera_patches(scenes.pool.poses if poses is None else poses, scenes.rays)
    given = image_conditioning(scenes.pool.first.float())
    random = torch.Generator().manual_seed(7)
    noise = torch.randn(scenes.pool.latent.shape, generator=random).to(camera.device)
    timesteps, asked = flow_timesteps(steps, SHIFT).tolist(), iter(range(steps))
    dtype = compute_dtype(camera.device)

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        timestep = timesteps[next(asked)]
        weights = high if is_high_noise(timestep) else low
        times, inputs = torch.full((len(x),), timestep, device=x.device), torch.cat([x, given], 1)
        predicted = velocity(weights, CONFIG, inputs, times, scenes.context, camera, dtype)
        if guidance != 1:
            without = velocity(weights, CONFIG, inputs, times, scenes.negative, camera, dtype)
            predicted = without + guidance * (predicted - without)
        return x - sigma.to(x.device) * predicted

    return solve("unipc", denoise, noise, flow_sigmas(steps, SHIFT))


Way = Callable[[Weights, Weights, HeldOut, int], Tensor]
"""(high-noise expert, low-noise expert, scenes, steps) -> latents."""


def _rounded(*, search: bool = False, only: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Way:
    """Both experts with their matrices in 4 bits, or with `only` these of each."""

    def way(high: Weights, low: Weights, scenes: HeldOut, steps: int) -> Tensor:
        high, low = (
            four_bit(weights, search=search, only=only.get(name)) for name, weights in (("high", high), ("low", low))
        )
        return generate(high, low, scenes, steps=steps)

    return way


WAYS: Mapping[str, Way] = {
    "VAE alone": lambda _high, _low, scenes, _steps: scenes.pool.latent,
    "both experts": lambda high, low, scenes, steps: generate(high, low, scenes, steps=steps),
    "another's camera": lambda high, low, scenes, steps: generate(
        high, low, scenes, poses=scenes.pool.poses.roll(1, 0), steps=steps
    ),
    "high-noise expert alone": lambda high, _low, scenes, steps: generate(high, high, scenes, steps=steps),
    "low-noise expert alone": lambda _high, low, scenes, steps: generate(low, low, scenes, steps=steps),
    "guidance 5": lambda high, low, scenes, steps: generate(high, low, scenes, steps=steps, guidance=5.0),
    "8 steps": lambda high, low, scenes, _steps: generate(high, low, scenes, steps=8),
    "12 steps": lambda high, low, scenes, _steps: generate(high, low, scenes, steps=12),
    "40 steps": lambda high, low, scenes, _steps: generate(high, low, scenes, steps=40),
    "nf4": _rounded(),
    "nf4, search": _rounded(search=True),
    "as packed now": _rounded(search=True, only=QUANTIZED),
}
"""The last one is what `toyworld.pack` makes, with the `--search` of today. The package that is shipped was made with
the one before it."""


@torch.no_grad()
def ways(
    high: Weights, low: Weights, scenes: HeldOut, steps: int = STEPS, only: Sequence[str] = ()
) -> Iterator[tuple[str, Tensor]]:
    """The first frame copied, then each of WAYS, or `only` some: its name and pictures [n, f, 3, height, width]."""
    yield "first frame copied", scenes.pictures[:, :1].expand_as(scenes.pictures)
    for name in only or WAYS:
        yield name, pictures_of(scenes.vae, WAYS[name](high, low, scenes, steps), scenes.sizes)


def measured(pictures: Tensor, scenes: HeldOut) -> dict[str, float]:
    """PSNR against the renderer: of the first frame; and of all frames and the last half of videos that move, by the
    mean square error, and by the mean of the videos' own decibels."""
    truth = scenes.pictures
    error = ((pictures - truth) / 2).square().mean((2, 3, 4))
    moving = ((truth[:, -1] - truth[:, 0]) / 2).square().mean((1, 2, 3)) > 0.002
    error_moving = error[moving] if moving.any() else error
    later = error_moving[:, error.shape[1] // 2 :].mean(1)
    return {
        "first": _decibels(error[:, 0].mean()),
        "all": _decibels(error_moving[:, 1:].mean()),
        "last half": _decibels(later.mean()),
        "last half, mean of videos": float((-10 * torch.log10(later.clamp(min=1e-10))).mean()),
    }


def _decibels(error: Tensor) -> float:
    return float(-10 * torch.log10(error.clamp(min=1e-10)))


def four_bit(weights: Weights, *, search: bool = False, only: Sequence[str] | None = None) -> Weights:
    """The weights as they come back from an NF4 file: all matrices, or `only` these, in 4 bits, the others in bf16."""
    chosen = linear_weights(CONFIG.parameter_shapes()) if only is None else only
    return {
        name: rounded(weight, search) if name in chosen else weight.bfloat16().float()
        for name, weight in weights.items()
    }


def rounded(weight: Tensor, search: bool) -> Tensor:
    """A weight as it comes back from an NF4 file."""
    return decode_4bit(*encode_4bit(weight, search=search), tuple(weight.shape), torch.bfloat16).float()


def sheet(truth: Tensor, made: Tensor, path: Path, scenes: int = 5) -> None:
    """Five frames of some scenes, the renderer's row over the model's, as a PNG."""
    columns = np.linspace(0, truth.shape[1] - 1, 5).round().astype(int).tolist()
    rows = torch.stack([truth[:scenes, columns], made[:scenes, columns].to(truth)], 1).flatten(0, 1)
    pixels = ((rows.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 3, 1, 4, 2)
    count, height, across, width, _ = pixels.shape
    Image.fromarray(pixels.reshape(count * height, across * width, 3).cpu().numpy()).save(path, optimize=True)


def main() -> None:
    """The command; prints a line for each way."""
    parser = argparse.ArgumentParser(prog="python -m lingbot_world.tools.toyworld.evaluate", description=main.__doc__)
    add = parser.add_argument
    add("checkpoints", type=Path, help="folder with vae.pt, high.pt and low.pt")
    add("--held_out", type=int, default=64, help="scenes")
    add("--steps", type=int, default=STEPS)
    add("--only", nargs="+", default=[], choices=WAYS, metavar="WAY", help=f"{'; '.join(WAYS)}. Default: all")
    options = parser.parse_args()
    if problem := lacking(options.checkpoints, MODELS):
        parser.error(problem)
    vae, high, low = (load_weights(options.checkpoints / f"{name}.pt") for name in MODELS)
    scenes = held_out(vae, embeddings(), Sizes(held_out=options.held_out), torch.device("cpu"))
    for name, pictures in ways(high, low, scenes, options.steps, options.only):
        print(name, {key: round(value, 2) for key, value in measured(pictures, scenes).items()}, flush=True)


if __name__ == "__main__":
    main()
