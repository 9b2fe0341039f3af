"""Training of the causal model: the low-noise expert and a change of it, a LoRA and all that is small.

First it learns the velocity of flow matching for chunks of three latent frames, each after the true chunks before it,
to which some noise is added. Then it learns to go in one step where the model of before goes in many, after chunks that
it has made itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ..geometry import CHUNK
from ..options import FAST_INDICES
from ..sampling import FewStepSchedule, few_step_schedule, sample_few_steps
from .camera_map import camera_patches, ray_patches
from .expert_training import SHAPES as EXPERT
from .expert_training import fastest_block, image_conditioning
from .fit import Keep, Log, Phase, fit
from .lora import lora_shapes, with_lora
from .parameters import Parameters
from .pool import Pool, Weights
from .prompts import draw
from .settings import CONFIG, SHIFT, Sizes
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
RATE, SHORTENING_RATE = 1.5e-3, 5e-4
MOST_NOISE = 0.3
"""Added to the chunks before, at most: a share of 1."""
TEACHER_STEPS = 5
LOWEST = 0.6
"""The noise level from which on it learns to go in one step."""
SHIFTS = (5.0, 10.0)
"""Of the schedules that it makes its own chunks by."""
ROLL_EVERY = 8
"""Steps after which it makes other videos itself."""


class Asked(NamedTuple):
    """A batch for the model. clean, noise [n, 16, f, h, w]; given [n, 20, f, h, w]; past: what stands for the chunks
    before; context and camera as in `causal_velocity`."""

    clean: Tensor
    past: Tensor
    noise: Tensor
    given: Tensor
    context: Tensor
    camera: Tensor


class Training:
    """Videos and models. `past` [n, 16, f, h, w]: each video of the pool as the model looks back on it."""

    def __init__(self, expert: Weights, pool: Pool, texts: Tensor, sizes: Sizes, device: torch.device) -> None:
        self.expert, self.pool, self.past, self.texts, self.sizes = expert, pool, pool.latent.clone(), texts, sizes
        self.team, self.run = Team(device, (0,), 0), fastest_block(device)
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.random = torch.Generator(device).manual_seed(4000)
        self.rays = ray_patches(sizes.height, sizes.width, device)
        self._made = 0

    def learn(self, start: Parameters, phase: Phase, rate: float, log: Log, keep: Keep | None) -> Parameters:
        """Flow matching after noisy chunks."""

        def loss(change: Weights, _progress: float) -> Tensor:
            asked = self._drawn()
            sigma = _by_chunk(shifted(self._uniform(len(asked.clean), asked.clean.shape[2] // CHUNK)))
            share = MOST_NOISE * self._uniform(len(asked.clean), 1, 1, 1, 1)
            past = (1 - share) * asked.past + share * self._normal(asked.past)
            x = (1 - sigma) * asked.clean + sigma * asked.noise
            velocity = self._velocity(with_change(self.expert, change), x, sigma, asked._replace(past=past))
            return F.mse_loss(velocity, asked.noise - asked.clean)

        return fit("causal", start, loss, self.team, phase, RATE * rate, log, 0.9993, keep)

    def shorten(self, start: Parameters, phase: Phase, rate: float, log: Log, keep: Keep | None) -> Parameters:
        """One step for many: from a noise level to where the model as it is now ends."""
        teacher = {name: tensor.detach().clone() for name, tensor in with_change(self.expert, start.named()).items()}
        step = 0

        def loss(change: Weights, _progress: float) -> Tensor:
            nonlocal step
            weights, step = with_change(self.expert, change), step + 1
            if step % ROLL_EVERY == 1:
                self._roll({name: tensor.detach() for name, tensor in weights.items()}, SHIFTS[step // ROLL_EVERY % 2])
            asked = self._drawn()
            count, chunks = len(asked.clean), asked.clean.shape[2] // CHUNK
            sigma = _by_chunk(1 - (1 - LOWEST) * self._uniform(count, chunks).square())
            x = (1 - sigma) * asked.clean + sigma * asked.noise
            end = self._end(teacher, x, sigma, asked)
            return F.mse_loss(self._velocity(weights, x, sigma, asked), (x - end) / sigma)

        return fit("fewer steps", start, loss, self.team, phase, SHORTENING_RATE * rate, log, 0.99, keep)

    @torch.no_grad()
    def _end(self, weights: Weights, x: Tensor, sigma: Tensor, asked: Asked) -> Tensor:
        """Where the model goes from x in TEACHER_STEPS of Euler's."""
        base = sigma / (SHIFT - (SHIFT - 1) * sigma)
        for step in range(TEACHER_STEPS):
            now, then = (shifted(base * (1 - at / TEACHER_STEPS)) for at in (step, step + 1))
            x = x + (then - now) * self._velocity(weights, x, now, asked)
        return x

    def _velocity(self, weights: Weights, x: Tensor, sigma: Tensor, asked: Asked) -> Tensor:
        clean, noisy = (torch.cat([part, asked.given], 1) for part in (asked.past, x))
        times = (1000 * sigma[:, 0, :, 0, 0]).floor()
        return causal_velocity(weights, CONFIG, clean, noisy, times, asked.context, asked.camera, self.dtype, self.run)

    def _roll(self, weights: Weights, shift: float) -> None:
        """The next videos of the pool, as the model makes them, are what it looks back on."""
        part = (self._made + torch.arange(min(self.sizes.fill, len(self.pool)))) % len(self.pool)
        self._made += len(part)
        asked = self._asked(part.to(self.past.device))
        schedule = few_step_schedule(FAST_INDICES, shift)
        made = rollout(weights, asked.given, asked.context, asked.camera, schedule, self.random, self.dtype)
        self.past[part] = made.to(self.past.dtype)

    def _drawn(self) -> Asked:
        return self._asked(torch.randint(0, len(self.pool), (self.sizes.batch,), device=self.past.device,
                                         generator=self.random))  # fmt: skip

    def _asked(self, index: Tensor) -> Asked:
        batch = self.pool[index]
        clean = batch.latent.float()
        return Asked(clean, self.past[index].float(), self._normal(clean), image_conditioning(batch.first.float()),
                     self.texts[draw(batch.kinds)], camera_patches(batch.poses, self.rays))  # fmt: skip

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, device=self.past.device, generator=self.random)

    def _normal(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, device=like.device, generator=self.random)


def with_change(expert: Weights, change: Weights) -> Weights:
    """The causal model's weights."""
    return with_lora(expert, change, 1.0) | {name: expert[name] + change[key] for key, name in WHOLE.items()}


def shifted(base: Tensor) -> Tensor:
    """The noise level at this share, 0 to 1, of the schedule."""
    return SHIFT * base / (1 + (SHIFT - 1) * base)


def _by_chunk(values: Tensor) -> Tensor:
    """[n, chunks] as [n, 1, f, 1, 1]."""
    return values.repeat_interleave(CHUNK, 1)[:, None, :, None, None]


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
