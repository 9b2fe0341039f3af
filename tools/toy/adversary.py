"""A relativistic GAN's discriminator of latents (Huang et al., 2024), with the penalty of Lin et al., 2025."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from .parameters import Parameters, Weights

LAYERS = ((16, 96, 3), (96, 192, 4), (192, 192, 3), (192, 192, 4), (192, 192, 3))
"""Channels into and out of each convolution, and its kernel size. Kernels of 4 halve the image."""
HEADS = {"near": 2, "far": 4}  # the layer that each head reads: a near patch sees 10x10 latent cells, a far one 24x24
SHAPES = {
    **{f"{index}.weight": (out, into, size, size) for index, (into, out, size) in enumerate(LAYERS)},
    **{f"{index}.bias": (out,) for index, (_, out, _) in enumerate(LAYERS)},
    **{f"{head}.weight": (1, LAYERS[layer][1], 1, 1) for head, layer in HEADS.items()},
    **{f"{head}.bias": (1,) for head in HEADS},
}
RATE = 2e-4
STEP, PENALTY = 0.1, 10.0  # the size of a random step, and the weight of the squared difference along it
IDLE = 300  # the adversary's training steps without an effect on the denoiser


class Adversary:
    """A discriminator of latent frames [n, 16, h, w]."""

    def __init__(self, seed: int, device: torch.device, random: Generator, share: float) -> None:
        """`share`: the length of the adversary's gradient, relative to the gradient that receives it."""
        self.random, self.share = random, share
        self.parameters = Parameters.random(SHAPES, seed, device)
        on_gpu, flat = device.type == "cuda", self.parameters.flat.requires_grad_()
        self.adam = torch.optim.Adam([flat], lr=RATE, betas=(0.0, 0.99), fused=on_gpu, capturable=on_gpu)
        self.steps = torch.zeros((), device=device)

    def slope(self, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """Train a step. Return the gradient of its loss by `made` [n, 16, f, h, w], for the frames in `asked` [n,
        f]."""
        fake, real = (part.movedim(2, 1).flatten(0, 1) for part in (made.detach(), true))
        share = (asked / asked.sum().clamp(min=1)).flatten()
        self._learn(fake, real, share)
        fake.requires_grad_()
        weights = {name: weight.detach() for name, weight in self.parameters.named().items()}
        loss = F.softplus(judged(weights, real) - judged(weights, fake)).mean(1) @ share
        return torch.autograd.grad(loss, fake)[0].unflatten(0, asked.shape).movedim(1, 2)

    def added(self, slope: Tensor, made: Tensor, true: Tensor, asked: Tensor) -> Tensor:
        """Return `slope` plus the adversary's gradient, scaled to `share` of its length."""
        own = self.slope(made, true, asked)
        length = self.share * slope.norm() / own.norm().clamp(min=1e-12)
        return slope + own * length * (self.steps > IDLE)

    def _learn(self, fake: Tensor, real: Tensor, share: Tensor) -> None:
        flat = self.parameters.flat
        with torch.enable_grad():
            weights = self.parameters.named()
            both = torch.cat([real, fake])
            noise = torch.randn(both.shape, device=both.device, generator=self.random)
            told, near = (judged(weights, both + step) for step in (0.0, STEP * noise))
            right, wrong = told.chunk(2)
            penalty = (told - near).square().mean(1).unflatten(0, (2, -1)).sum(0)
            loss = (F.softplus(wrong - right).mean(1) + PENALTY * penalty) @ share
        flat.grad = torch.autograd.grad(loss, flat)[0]
        self.adam.step()
        self.steps += 1


def judged(weights: Weights, latents: Tensor) -> Tensor:
    """Return realism scores [n, patches] of latents [n, 16, h, w]. Both heads weigh the same in a mean."""
    x, found = latents, []
    for index, (_, _, size) in enumerate(LAYERS):
        x = F.leaky_relu(_convolved(weights, str(index), x, 2 - size % 2, 1), 0.2)
        found.append(x)
    near, far = (_convolved(weights, head, found[layer]) for head, layer in HEADS.items())
    return torch.cat([near, F.interpolate(far, near.shape[2:], mode="nearest-exact")], 1).flatten(1)


def _convolved(weights: Weights, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    return F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding)
