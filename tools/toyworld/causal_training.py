"""Training of the causal model: the low-noise expert and a change of it, a LoRA and all that is small.

It learns the velocity of flow matching for chunks of three latent frames, each after the chunks before it. In most of
the videos these are not the true ones. They are what the model itself makes of noised chunks in one step: the first
time after true chunks, then after those of the time before. They are softer than the true ones, as it will find them
when it makes a video: it learns not to go on still softer. Some noise is added to all chunks before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ...options import CHUNK
from ...sampling import FewStepSchedule
from .camera_map import camera_patches, ray_patches
from .expert_training import SHAPES as EXPERT
from .expert_training import fastest_block, image_conditioning
from .fit import Keep, Log, Phase, fit
from .lora import lora_shapes, with_lora
from .parameters import Parameters, Weights
from .pool import Pool
from .prompts import draw
from .settings import CONFIG, SHIFT, Sizes, compute_dtype
from .team import Team
from .twin import Block, block, causal_velocity

RANK = 24
LAYERS = [
    name.removesuffix(".weight")
    for name, shape in EXPERT.items()
    if len(shape) == 2 and any(part in name for part in (".self_attn.", ".ffn.", ".cam_", "time_projection"))
]
"""What the LoRA changes."""


def _key(name: str) -> str:
    """Of the change of a whole parameter, as LoRA files have it."""
    return f"{name.removesuffix('.bias')}.diff_b" if name.endswith(".bias") else f"{name.removesuffix('.weight')}.diff"


WHOLE = {
    _key(name): name
    for name, shape in EXPERT.items()
    if len(shape) == 1 or "modulation" in name or name in ("patch_embedding.weight", "head.head.weight")
}
"""The parameters that are changed as they are, by the key of their change."""

SHAPES = lora_shapes(LAYERS, RANK) | {key: EXPERT[name] for key, name in WHOLE.items()}
RATE = 1.5e-3
MOST_NOISE = 0.3
"""Added to the chunks before, at most: a share of 1."""
OWN = 0.9
"""The share of the videos whose chunks before are the model's own."""
GENERATIONS = 2
"""How often these are made: at first after the true chunks, then after those that were made."""
LEAST_NOISE = 0.6
"""Of the noised chunks that they are made of."""


def train_causal(
    expert: Weights,
    start: Parameters,
    phase: Phase,
    pool: Pool,
    texts: Tensor,
    sizes: Sizes,
    rate: float,
    log: Log,
    keep: Keep,
) -> Parameters:
    """The change of `expert` that makes it a causal model, from `start`. texts: the embeddings of `prompts`."""
    team = Team(texts.device, (0,), 0)
    random = torch.Generator(texts.device).manual_seed(4000)
    dtype = compute_dtype(texts.device)
    run = fastest_block(texts.device)

    def loss(change: Weights, _progress: float) -> Tensor:
        weights = with_change(expert, change)

        def model(clean: Tensor, noisy: Tensor, timestep: Tensor, context: Tensor, camera: Tensor) -> Tensor:
            return causal_velocity(weights, CONFIG, clean, noisy, timestep, context, camera, dtype, run)

        asked = drawn(pool, texts, sizes, random, model)
        return F.mse_loss(model(*asked.inputs), asked.wanted)

    return fit("causal", start, loss, team, phase, RATE * rate, log, 0.9993, keep)


Model = Callable[..., Tensor]
"""(the inputs of `Asked`) -> velocity."""


class Asked(NamedTuple):
    """What the model is asked in a step of its training: `inputs` of `causal_velocity`, and the velocity wanted."""

    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    wanted: Tensor


def drawn(pool: Pool, texts: Tensor, sizes: Sizes, random: Generator, model: Model) -> Asked:
    """A batch of random videos of the pool, each chunk at a random noise level, each video with a prompt."""
    device = pool.latent.device
    batch = pool[torch.randint(0, len(pool), (sizes.batch,), device=device, generator=random)]
    clean, given = batch.latent.float(), image_conditioning(batch.first.float())
    camera = camera_patches(batch.poses, ray_patches(sizes.height, sizes.width, device))
    said = texts[draw(batch.kinds)], camera
    past = _past(clean, given, said, random, model)
    now, sigma, noise = _noised(clean, 0.0, random)
    past, now = (torch.cat([part, given], 1) for part in (past, now))
    return Asked((past, now, (1000 * sigma).floor(), *said), noise - clean)


@torch.no_grad()
def _past(clean: Tensor, given: Tensor, said: tuple[Tensor, Tensor], random: Generator, model: Model) -> Tensor:
    """The chunks before: of some videos the true ones, of the others the model's own; some noise is added to all."""
    share = MOST_NOISE * torch.rand(len(clean), 1, 1, 1, 1, device=clean.device, generator=random)
    own = slice(round(OWN * len(clean)))
    past = torch.lerp(clean, _like(clean, random), share)
    for _ in range(GENERATIONS if own.stop else 0):
        now, sigma, _noise = _noised(clean[own], LEAST_NOISE, random)
        before, now_given = (torch.cat([part, given[own]], 1) for part in (past[own], now))
        velocity = model(before, now_given, (1000 * sigma).floor(), *(each[own] for each in said))
        made = now - sigma[:, None, :, None, None] * velocity
        past[own] = torch.lerp(made, _like(made, random), share[own])
    return past


def _noised(clean: Tensor, least: float, random: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [n, 16, f, h, w] with noise, each chunk at a random level between `least` and 1, spread as the schedule
    spreads 0 to 1; the levels [n, f]; the noise."""
    noise = _like(clean, random)
    levels = torch.rand(len(clean), clean.shape[2] // CHUNK, device=clean.device, generator=random)
    sigma = (least + (1 - least) * shifted(levels)).repeat_interleave(CHUNK, 1)
    return torch.lerp(clean, noise, sigma[:, None, :, None, None]), sigma, noise


def _like(tensor: Tensor, random: Generator) -> Tensor:
    return torch.randn(tensor.shape, device=tensor.device, generator=random)


def with_change(expert: Weights, change: Weights) -> Weights:
    """The causal model's weights."""
    return with_lora(expert, change, 1.0) | {name: expert[name] + change[key] for key, name in WHOLE.items()}


def shifted(base: Tensor) -> Tensor:
    """The noise level at this share, 0 to 1, of the schedule."""
    return SHIFT * base / (1 + (SHIFT - 1) * base)


@torch.no_grad()
def rollout(
    weights: Weights,
    given: Tensor,
    context: Tensor,
    camera: Tensor,
    schedule: FewStepSchedule,
    random: Generator,
    dtype: torch.dtype = torch.float32,
    run: Block = block,
) -> Tensor:
    """Latents [n, 16, f, h, w] made chunk by chunk, as the engine's rollout makes them. given [n, 20, f, h, w]; the
    other arguments are those of `causal_velocity`. `random`: on the device of `given`."""
    made = given[:, 4:, :0]
    per_frame = camera.shape[1] // given.shape[2]
    for first in range(0, given.shape[2], CHUNK):
        end = first + CHUNK
        clean, own = torch.cat([made, given[:, :, :first]], 1), given[:, :, first:end]
        seen = camera[:, : end * per_frame]

        def predict(x: Tensor, timestep: int, clean: Tensor = clean, own: Tensor = own, seen: Tensor = seen) -> Tensor:
            times = torch.full((len(x), CHUNK), float(timestep), device=x.device)
            noisy = torch.cat([x, own], 1)
            return causal_velocity(weights, CONFIG, clean, noisy, times, context, seen, dtype, run)

        def fresh(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, device=given.device, generator=random)

        chunk = schedule.denoise(predict, fresh(own[:, 4:].shape), fresh)
        made = torch.cat([made, chunk], 2)
    return made
