"""An adversary: it learns to tell what was made from what is true, and the denoiser, or the decoder, to pass.

Squared errors alone average what cannot be known, and an average is soft. The loss is that of a relativistic GAN
(Huang et al., The GAN is dead; long live the GAN!, 2024). The penalty on steep slopes is a difference along a random
step (Lin et al., Diffusion adversarial post-training, 2025), which needs no second derivative."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ..toyworld.parameters import Parameters, Shapes, Weights


class Sight(NamedTuple):
    """What an adversary sees: so many frames at a time, one behind the other in channels. layers: the channels into and
    out of each convolution, and its width; those of width 4 halve the size. What the `near` head says of a patch is
    read from the output of that layer, what the `far` one says from that one's."""

    frames: int
    layers: tuple[tuple[int, int, int], ...]
    near: int
    far: int

    @property
    def shapes(self) -> Shapes:
        """Of the weights."""
        found: dict[str, tuple[int, ...]] = {}
        for index, (into, out, size) in enumerate(self.layers):
            found |= {f"{index}.weight": (out, into, size, size), f"{index}.bias": (out,)}
        for head, layer in (("near", self.near), ("far", self.far)):
            found |= {f"{head}.weight": (1, self.layers[layer][1], 1, 1), f"{head}.bias": (1,)}
        return found

    def of(self, frames: Tensor) -> Tensor:
        """What is judged [n * (f - frames + 1), channels, h, w] of frames [n, c, f, h, w]."""
        last = frames.shape[2] - self.frames + 1
        parts = [frames[:, :, first : first + last] for first in range(self.frames)]
        return torch.cat(parts, 1).movedim(2, 1).flatten(0, 1)


LATENTS = Sight(1, ((16, 96, 3), (96, 192, 4), (192, 192, 3), (192, 192, 4), (192, 192, 3)), 2, 4)
"""Of the denoiser's: the near head sees 10x10 latents, the far one 24x24."""
PICTURES = Sight(3, ((9, 32, 4), (32, 64, 4), (64, 128, 3), (128, 128, 4), (128, 128, 3)), 2, 4)
"""Of the decoder's: the near head sees 18x18 pixels of three frames, the far one 46x46."""
RATE = 2e-4
STEP, PENALTY = 0.1, 10.0
"""A random step's size, and the weight of the squared difference along it."""
IDLE = 300
"""Steps that it learns before it is heeded."""


class Adversary:
    """Judges frames [n, c, f, h, w], by small patches and by large ones. Each process has its own."""

    def __init__(
        self, seed: int, device: torch.device, random: Generator, share: float, sight: Sight = LATENTS
    ) -> None:
        """random: a generator of the device. share: the length of its gradient against the one that it is added to."""
        self.random, self.share, self.sight = random, share, sight
        self.parameters = Parameters.random(sight.shapes, seed, device)
        on_gpu, flat = device.type == "cuda", self.parameters.flat.requires_grad_()
        self.adam = torch.optim.Adam([flat], lr=RATE, betas=(0.0, 0.99), fused=on_gpu, capturable=on_gpu)
        self.steps = torch.zeros((), device=device)

    def slope(self, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """The gradient by `made` [n, c, f, h, w] of how easily it is told from `true`, of frames that are `asked` for
        (float [n, f]). Before, the adversary itself learns a step of it."""
        made = made.detach().requires_grad_()
        with torch.enable_grad():
            fake, real = self.sight.of(made), self.sight.of(true)
        asked = asked[:, self.sight.frames - 1 :]
        share = (asked / asked.sum().clamp(min=1)).flatten()
        self._learn(fake.detach(), real, share)
        weights = {name: weight.detach() for name, weight in self.parameters.named().items()}
        with torch.enable_grad():
            loss = F.softplus(judged(weights, real, self.sight) - judged(weights, fake, self.sight)).mean(1) @ share
        return torch.autograd.grad(loss, made)[0]

    def added(self, slope: Tensor, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """The gradient `slope` by `made`, and the adversary's beside it, so long that it is `share` of it."""
        own = self.slope(made, true, asked)
        length = self.share * slope.norm() / own.norm().clamp(min=1e-12)
        return slope + own * length * (self.steps > IDLE)

    def _learn(self, fake: Tensor, real: Tensor, share: Tensor) -> None:
        flat = self.parameters.flat
        with torch.enable_grad():
            weights, both = self.parameters.named(), torch.cat([real, fake])
            told, near = (judged(weights, both + step, self.sight) for step in (0.0, STEP * self._noise(both)))
            right, wrong = told.chunk(2)
            penalty = (told - near).square().mean(1).unflatten(0, (2, -1)).sum(0)
            loss = (F.softplus(wrong - right).mean(1) + PENALTY * penalty) @ share
        flat.grad = torch.autograd.grad(loss, flat)[0]
        self.adam.step()
        self.steps += 1

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, device=like.device, generator=self.random)


def judged(weights: Weights, seen: Tensor, sight: Sight = LATENTS) -> Tensor:
    """How true each patch of what is `seen` [n, channels, h, w] looks: [n, patches], first those of the near head. Each
    of them has a far one beside it, that of the place where it lies: so both heads have the same weight in a mean."""
    x, found = seen, []
    for index, (_, _, size) in enumerate(sight.layers):
        x = F.leaky_relu(_convolved(weights, str(index), x, 2 - size % 2, 1), 0.2)
        found.append(x)
    near, far = _convolved(weights, "near", found[sight.near]), _convolved(weights, "far", found[sight.far])
    return torch.cat([near, F.interpolate(far, near.shape[2:], mode="nearest-exact")], 1).flatten(1)


def _convolved(weights: Weights, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding)
