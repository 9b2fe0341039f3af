"""Training of the causal model: the low-noise expert and a change of it, a LoRA and all that is small.

It learns the velocity of flow matching for chunks of three latent frames, each after the true chunks before it, to
which some noise is added: the chunks that it makes itself are not quite true either."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ..options import CHUNK
from ..sampling import FewStepSchedule, sample_few_steps
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
LAYERS = [name.removesuffix(".weight") for name, shape in EXPERT.items() if len(shape) == 2
          and any(part in name for part in (".self_attn.", ".ffn.", ".cam_", "time_projection"))]  # fmt: skip
"""What the LoRA changes."""


def _key(name: str) -> str:
    """Of the change of a whole parameter, as LoRA files have it."""
    return f"{name.removesuffix('.bias')}.diff_b" if name.endswith(".bias") else f"{name.removesuffix('.weight')}.diff"


WHOLE = {
    _key(name): name for name, shape in EXPERT.items()
    if len(shape) == 1 or "modulation" in name or name in ("patch_embedding.weight", "head.head.weight")
}  # fmt: skip
"""The parameters that are changed as they are, by the key of their change."""

SHAPES = lora_shapes(LAYERS, RANK) | {key: EXPERT[name] for key, name in WHOLE.items()}
RATE = 1.5e-3
MOST_NOISE = 0.3
"""Added to the chunks before, at most: a share of 1."""


def train_causal(
    expert: Weights, start: Parameters, phase: Phase, pool: Pool, texts: Tensor, sizes: Sizes, rate: float, log: Log,
    keep: Keep,
) -> Parameters:
    """The change of `expert` that makes it a causal model, from `start`. texts: the embeddings of `prompts`."""
    team = Team(texts.device, (0,), 0)
    random = torch.Generator(texts.device).manual_seed(4000)
    dtype = compute_dtype(texts.device)
    run = fastest_block(texts.device)

    def loss(change: Weights, _progress: float) -> Tensor:
        asked = drawn(pool, texts, sizes, random)
        return F.mse_loss(causal_velocity(with_change(expert, change), CONFIG, *asked.inputs, dtype, run), asked.wanted)

    return fit("causal", start, loss, team, phase, RATE * rate, log, 0.9993, keep)


class Asked(NamedTuple):
    """What the model is asked in a step of its training: `inputs` of `causal_velocity`, and the velocity wanted."""

    inputs: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    wanted: Tensor


def drawn(pool: Pool, texts: Tensor, sizes: Sizes, random: Generator) -> Asked:
    """A batch of random videos of the pool, each chunk at a random noise level, each video with a prompt."""
    device = pool.latent.device
    batch = pool[torch.randint(0, len(pool), (sizes.batch,), device=device, generator=random)]
    clean, given = batch.latent.float(), image_conditioning(batch.first.float())
    noise, other = (torch.randn(clean.shape, device=device, generator=random) for _ in range(2))
    levels = torch.rand(len(clean), clean.shape[2] // CHUNK, device=device, generator=random)
    sigma = shifted(levels).repeat_interleave(CHUNK, 1)
    share = MOST_NOISE * torch.rand(len(clean), 1, 1, 1, 1, device=device, generator=random)
    at = sigma[:, None, :, None, None]
    past = torch.cat([(1 - share) * clean + share * other, given], 1)
    now = torch.cat([(1 - at) * clean + at * noise, given], 1)
    camera = camera_patches(batch.poses, ray_patches(sizes.height, sizes.width, device))
    return Asked((past, now, (1000 * sigma).floor(), texts[draw(batch.kinds)], camera), noise - clean)


def with_change(expert: Weights, change: Weights) -> Weights:
    """The causal model's weights."""
    return with_lora(expert, change, 1.0) | {name: expert[name] + change[key] for key, name in WHOLE.items()}


def shifted(base: Tensor) -> Tensor:
    """The noise level at this share, 0 to 1, of the schedule."""
    return SHIFT * base / (1 + (SHIFT - 1) * base)


@torch.no_grad()
def rollout(
    weights: Weights, given: Tensor, context: Tensor, camera: Tensor, schedule: FewStepSchedule, random: Generator,
    dtype: torch.dtype = torch.float32, run: Block = block,
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

        chunk = sample_few_steps(predict, fresh(own[:, 4:].shape), schedule, fresh)
        made = torch.cat([made, chunk], 2)
    return made
