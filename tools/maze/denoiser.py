"""Training of the denoiser: of the base model's two experts, which are alike, and of the causal model, at once.

It learns the velocity of flow matching for chunks of 1, 3 or 4 latent frames, each after the chunks before it, and of
whole videos, which are a single chunk. In half of the walks the chunks before are not the true ones but what the model
itself makes of noised ones in one step; some noise is added to all of them, so that it learns to put right what is
wrong. Chunks are asked at the noise levels of the few steps above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ...model.pointwise import or_else
from ...options import CAUSAL_SHIFT, FAST_INDICES
from ...sampling import few_step_schedule
from ..toyworld.camera_map import ray_patches
from ..toyworld.fit import Keep, Log, Phase
from ..toyworld.parameters import Parameters, Weights
from ..toyworld.prompts import draw
from ..toyworld.settings import compute_dtype
from ..toyworld.team import Team
from .camera_map import camera_patches
from .fit import fit, slope_of
from .pool import Pool, given
from .rooms import CAPTIONS
from .settings import CONFIG, SHIFT, SINK, WINDOW, Sizes
from .spans import chunks
from .twin import PLAIN, Parts, causal_velocity, finished, projected, velocity

SHAPES = CONFIG.parameter_shapes()
RATE = 1.5e-3
CHUNKS = (1, 3, 3, 4)
"""Drawn from for each step."""
BASE_EVERY = 8
"""One step in so many is of whole videos, of BASE_MORE times as many."""
BASE_MORE = 3
LATER_SHARE = 0.35
"""Of the steps: walks whose second half is later."""
LATER = (1, 3, 10, 30, 100, 300)
MOST_NOISE = 0.35
"""Added to the chunks before, at most: a share of 1."""
OWN = 0.5
"""The share of the walks whose chunks before are the model's own."""
LEAST_NOISE = 0.7
"""Of the noised chunks that they are made of."""
FEW_STEPS = 0.7
"""The share of the chunks that are asked at the noise levels of the few steps."""
BLIND = 3
"""Latent frames of a later half that nothing near is known of: they are not learned."""
SOFT = 0.1
"""Errors up to this count squared, larger ones by their length alone: what cannot be known is not averaged."""


class Given(NamedTuple):
    """What all steps take from: embedded prompts, `pool.settled`, walks and those whose second half is later."""

    texts: Tensor
    grey: Tensor
    walks: Pool
    later: Pool


def train_denoiser(
    start: Parameters, team: Team, phase: Phase, data: Given, sizes: Sizes, rate: float, log: Log, keep: Keep | None,
    seed: int,
) -> Parameters:
    """The denoiser, from `start`. What a step is of is the same in all processes, so that none waits for another."""
    device = team.device
    random = torch.Generator(device).manual_seed(4000 + seed + 100_000 * team.rank)
    choice = torch.Generator().manual_seed(seed)
    dtype, parts = compute_dtype(device), fastest(device)
    rays = ray_patches(sizes.height, sizes.width, device)

    def loss(weights: Weights, _progress: float) -> Tensor:
        ready = cast_once(weights, dtype)
        if float(torch.rand((), generator=choice)) < 1 / BASE_EVERY:
            return _base_loss(ready, data, sizes, rays, random, dtype, parts)
        return _walk_loss(ready, data, sizes, rays, random, choice, dtype, parts)

    return fit("denoiser", start, slope_of(start, loss), team, phase, RATE * rate, log, 0.999, keep)


def cast_once(weights: Weights, dtype: torch.dtype) -> Weights:
    """Copies of all weights, matrices of the blocks in the dtype that they are used in: one cast for a whole step."""
    return {name: weight.to(dtype) if name.startswith("blocks.") and weight.ndim == 2 else weight.clone()
            for name, weight in weights.items()}  # fmt: skip


def fastest(device: torch.device) -> Parts:
    """A block's parts, compiled once for all blocks where there is a GPU."""
    if device.type != "cuda":
        return PLAIN
    return (or_else(torch.compile(projected, dynamic=False), projected, "projected"),
            or_else(torch.compile(finished, dynamic=False), finished, "finished"))  # fmt: skip


def _base_loss(
    weights: Weights, data: Given, sizes: Sizes, rays: Tensor, random: Generator, dtype: torch.dtype, parts: Parts
) -> Tensor:
    """Of whole videos: the beginnings of walks."""
    count = BASE_MORE * sizes.batch
    batch = data.walks[_some(data.walks, count, random)]
    clean = batch.latent[:, :, : sizes.base].float()
    sigma = shifted(torch.rand(count, device=clean.device, generator=random), SHIFT)
    noise = _like(clean, random)
    x = torch.cat([torch.lerp(clean, noise, sigma[:, None, None, None, None]),
                   given(batch.first, data.grey, sizes.base)], 1)  # fmt: skip
    camera = camera_patches(batch.steps[:, : sizes.base], rays)
    text = data.texts[draw(batch.kinds[:, 0], len(CAPTIONS))]
    made = velocity(weights, CONFIG, x, (1000 * sigma).floor(), text, camera, dtype, parts)
    return F.mse_loss(made, noise - clean)


def _walk_loss(
    weights: Weights, data: Given, sizes: Sizes, rays: Tensor, random: Generator, choice: Generator,
    dtype: torch.dtype, parts: Parts,
) -> Tensor:
    """Of walks, chunk by chunk."""
    frames, half = 2 * sizes.half, sizes.half
    draws = torch.rand(4, generator=choice).tolist()
    is_later, windowed = draws[0] < LATER_SHARE, draws[1] < 0.5
    chunk, gap = CHUNKS[int(draws[2] * len(CHUNKS))], LATER[int(draws[3] * len(LATER))]
    pool = data.later if is_later else data.walks
    batch = pool[_some(pool, sizes.batch, random)]
    window, sink = (WINDOW * half // 12, SINK * half // 12) if is_later or windowed else (None, 0)
    attends = chunks(frames, chunk, window, sink, half if is_later else 0)
    image, camera = given(batch.first, data.grey, frames), camera_patches(batch.steps, rays)
    text = data.texts[draw(batch.kinds.flatten(), len(CAPTIONS))].unflatten(0, (-1, 2))
    same = batch.kinds[:, 0] == batch.kinds[:, 1]
    text[:, 1] = torch.where(same[:, None, None], text[:, 0], text[:, 1])

    def model(past: Tensor, now: Tensor, sigma: Tensor) -> Tensor:
        some = slice(len(past))
        past, now = (torch.cat([part, image[some]], 1) for part in (past, now))
        return causal_velocity(weights, CONFIG, past, now, (1000 * sigma).floor(), text[some], camera[some], attends,
                               gap if is_later else 0, dtype, parts)  # fmt: skip

    clean = batch.latent.float()
    past = _past(clean, chunk, random, model)
    now, sigma, noise = _noised(clean, chunk, 0.0, random)
    error = model(past, now, sigma) - (noise - clean)
    learned = torch.ones(frames, device=clean.device)
    if is_later:
        learned[half : half + -(-BLIND // chunk) * chunk] = 0
    return (_robust(error) * learned[:, None, None]).mean() / learned.mean()


def _robust(error: Tensor) -> Tensor:
    """What is to become small [n, f, h / 2, w / 2] of errors [n, 16, f, h, w]: for each token, its length."""
    square = F.avg_pool2d(error.square().mean(1), 2)
    return (square + SOFT**2).sqrt() - SOFT + 0.25 * square


@torch.no_grad()
def _past(clean: Tensor, chunk: int, random: Generator, model: Callable[..., Tensor]) -> Tensor:
    """The chunks before: of some walks the true ones, of the others the model's own; some noise is added to all."""
    share = MOST_NOISE * torch.rand(len(clean), 1, 1, 1, 1, device=clean.device, generator=random) ** 2
    past = torch.lerp(clean, _like(clean, random), share)
    own = slice(round(OWN * len(clean)))
    now, sigma, _ = _noised(clean[own], chunk, LEAST_NOISE, random)
    made = now - sigma[:, None, :, None, None] * model(past[own], now, sigma)
    past[own] = torch.lerp(made, _like(made, random), share[own])
    return past


def _noised(clean: Tensor, chunk: int, least: float, random: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [n, 16, f, h, w] with noise, each chunk at a random level of the few steps or any from `least` to 1; the
    levels [n, f]; the noise."""
    count, device = -(-clean.shape[2] // chunk), clean.device
    shape = len(clean), count
    any_level = least + (1 - least) * shifted(torch.rand(shape, device=device, generator=random), SHIFT)
    steps = torch.tensor(few_step_schedule(FAST_INDICES, CAUSAL_SHIFT).sigmas, device=device, dtype=torch.float32)
    few = steps[torch.randint(0, len(steps), shape, device=device, generator=random)]
    asked = torch.where(torch.rand(shape, device=device, generator=random) < FEW_STEPS, few, any_level)
    sigma = asked.repeat_interleave(chunk, 1)[:, : clean.shape[2]]
    noise = _like(clean, random)
    return torch.lerp(clean, noise, sigma[:, None, :, None, None]), sigma, noise


def _some(pool: Pool, count: int, random: Generator) -> Tensor:
    return torch.randint(0, len(pool), (count,), device=pool.latent.device, generator=random)


def _like(tensor: Tensor, random: Generator) -> Tensor:
    return torch.randn(tensor.shape, device=tensor.device, generator=random)


def shifted(base: Tensor, shift: float) -> Tensor:
    """The noise level at this share, 0 to 1, of the schedule."""
    return shift * base / (1 + (shift - 1) * base)
