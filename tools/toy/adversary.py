"""An adversary of the denoiser: it learns to tell latents that were made from true ones, and the denoiser to pass.

Squared errors alone average what cannot be known, and an average is soft. The loss is that of a relativistic GAN
(Huang et al., The GAN is dead; long live the GAN!, 2024). The penalty on steep slopes is a difference along a random
step (Lin et al., Diffusion adversarial post-training, 2025), which needs no second derivative."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from .parameters import Parameters, Weights

LAYERS = ((16, 96, 3), (96, 192, 4), (192, 192, 3), (192, 192, 4), (192, 192, 3))
"""Channels into and out of each convolution, and its width; those of width 4 halve the size."""
HEADS = {"near": 2, "far": 4}
"""The convolutions of the two heads: a patch of the near one sees 10x10 latents, of the far one 24x24."""
SHAPES = {
    **{f"{index}.weight": (out, into, size, size) for index, (into, out, size) in enumerate(LAYERS)},
    **{f"{index}.bias": (out,) for index, (_, out, _) in enumerate(LAYERS)},
    **{f"{head}.weight": (1, LAYERS[layer][1], 1, 1) for head, layer in HEADS.items()},
    **{f"{head}.bias": (1,) for head in HEADS},
}
RATE = 2e-4
STEP, PENALTY = 0.1, 10.0
"""A random step's size, and the weight of the squared difference along it."""
IDLE = 300
"""Steps that it learns before it is heeded."""


class Adversary:
    """Judges latent frames [n, 16, h, w], by small patches and by large ones. Each process has its own."""

    def __init__(self, seed: int, device: torch.device, random: Generator, share: float) -> None:
        """random: a generator of the device. share: the length of its gradient against the one that it is added to."""
        self.random, self.share = random, share
        self.parameters = Parameters.random(SHAPES, seed, device)
        on_gpu, flat = device.type == "cuda", self.parameters.flat.requires_grad_()
        self.adam = torch.optim.Adam([flat], lr=RATE, betas=(0.0, 0.99), fused=on_gpu, capturable=on_gpu)
        self.steps = torch.zeros((), device=device)

    def slope(self, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """Return the gradient, by `made` [n, 16, f, h, w], of the adversary's loss against `true`, for the latent
        frames selected by `asked` (float [n, f]). The adversary first learns a step."""
        fake, real = (part.movedim(2, 1).flatten(0, 1) for part in (made.detach(), true))
        share = (asked / asked.sum().clamp(min=1)).flatten()
        self._learn(fake, real, share)
        fake.requires_grad_()
        weights = {name: weight.detach() for name, weight in self.parameters.named().items()}
        loss = F.softplus(judged(weights, real) - judged(weights, fake)).mean(1) @ share
        return torch.autograd.grad(loss, fake)[0].unflatten(0, asked.shape).movedim(1, 2)

    def added(self, slope: Tensor, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """Return `slope`, a gradient by `made`, plus the adversary's gradient scaled to `share` of its length."""
        own = self.slope(made, true, asked)
        length = self.share * slope.norm() / own.norm().clamp(min=1e-12)
        return slope + own * length * (self.steps > IDLE)

    def _learn(self, fake: Tensor, real: Tensor, share: Tensor) -> None:
        flat = self.parameters.flat
        with torch.enable_grad():
            weights = self.parameters.named()
            told, near = (judged(weights, torch.cat([real, fake]) + step) for step in (0.0, STEP * self._noise(real)))
            right, wrong = told.chunk(2)
            penalty = (told - near).square().mean(1).unflatten(0, (2, -1)).sum(0)
            loss = (F.softplus(wrong - right).mean(1) + PENALTY * penalty) @ share
        flat.grad = torch.autograd.grad(loss, flat)[0]
        self.adam.step()
        self.steps += 1

    def _noise(self, real: Tensor) -> Tensor:
        return torch.randn((2 * len(real), *real.shape[1:]), device=real.device, generator=self.random)


def judged(weights: Weights, latents: Tensor) -> Tensor:
    """Return a score of realism for each patch of latents [n, 16, h, w]: [n, patches], first of the near head, then for
    each of these the far head's at the same place, so that both heads have the same weight in a mean."""
    x, found = latents, []
    for index, (_, _, size) in enumerate(LAYERS):
        x = F.leaky_relu(_convolved(weights, str(index), x, 2 - size % 2, 1), 0.2)
        found.append(x)
    near, far = (_convolved(weights, head, found[layer]) for head, layer in HEADS.items())
    return torch.cat([near, F.interpolate(far, near.shape[2:], mode="nearest-exact")], 1).flatten(1)


def _convolved(weights: Weights, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding)
