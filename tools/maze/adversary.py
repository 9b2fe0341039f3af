"""An adversary of the denoiser: it learns to tell latents that were made from true ones, and the denoiser to pass.

Squared errors alone average what cannot be known, and an average is soft. The loss is that of a relativistic GAN
(Huang et al., The GAN is dead; long live the GAN!, 2024). The penalty on steep slopes is a difference along a random
step (Lin et al., Diffusion adversarial post-training, 2025), which needs no second derivative."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ..toyworld.parameters import Parameters, Weights

SHAPES = {
    "0.weight": (96, 16, 3, 3), "0.bias": (96,), "1.weight": (192, 96, 4, 4), "1.bias": (192,),
    "2.weight": (192, 192, 3, 3), "2.bias": (192,), "3.weight": (1, 192, 1, 1), "3.bias": (1,),
}  # fmt: skip
"""Of its convolutions; the second one halves the size."""
RATE = 2e-4
STEP, PENALTY = 0.1, 10.0
"""A random step's size, and the weight of the squared difference along it."""
IDLE = 300
"""Steps that it learns before it is heeded."""


class Adversary:
    """Judges latent frames [n, 16, h, w], patch by patch. Each process has its own."""

    def __init__(self, seed: int, device: torch.device, random: Generator, share: float) -> None:
        """random: a generator of the device. share: the length of its gradient against the one that it is added to."""
        self.random, self.share = random, share
        self.parameters = Parameters.random(SHAPES, seed, device)
        on_gpu, flat = device.type == "cuda", self.parameters.flat.requires_grad_()
        self.adam = torch.optim.Adam([flat], lr=RATE, betas=(0.0, 0.99), fused=on_gpu, capturable=on_gpu)
        self.steps = torch.zeros((), device=device)

    def slope(self, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """The gradient by `made` [n, 16, f, h, w] of how easily it is told from `true`, of latent frames that are
        `asked` for (float [n, f]). Before, the adversary itself learns a step of it."""
        fake, real = (part.movedim(2, 1).flatten(0, 1) for part in (made.detach(), true))
        share = (asked / asked.sum().clamp(min=1)).flatten()
        self._learn(fake, real, share)
        fake.requires_grad_()
        weights = {name: weight.detach() for name, weight in self.parameters.named().items()}
        loss = F.softplus(judged(weights, real) - judged(weights, fake)).mean(1) @ share
        return torch.autograd.grad(loss, fake)[0].unflatten(0, asked.shape).movedim(1, 2)

    def added(self, slope: Tensor, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """The gradient `slope` by `made`, and the adversary's beside it, so long that it is `share` of it."""
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
    """How true each patch of latents [n, 16, h, w] looks: [n, patches]."""
    x = latents
    for index, (stride, padding) in enumerate(((1, 1), (2, 1), (1, 1), (1, 0))):
        if index:
            x = F.leaky_relu(x, 0.2)
        x = F.conv2d(x, weights[f"{index}.weight"], weights[f"{index}.bias"], stride, padding)
    return x.flatten(1)
