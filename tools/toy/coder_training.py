"""Training of the VAE on rendered videos, and its latents' normalisation to Wan's statistics."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ...vae.network import LATENT_CHANNELS
from ...vae.weights import MEAN, STD, vae_shapes
from .coder import decode, encode, latent_mean
from .fit import Log, Phase, fit, slope_of
from .parameters import Parameters
from .pool import TRIES
from .render import render
from .rooms import random_scenes
from .settings import VAE_WIDTH, Sizes, compute_dtype
from .walks import random_walks

RATE = 2e-3
KL = 2e-4
EDGES = 0.4
WHOLE_FROM = 0.65  # the progress after which whole frames replace crops
GREY, MIDDLE = 10, 127  # one batch in so many has grey after its first frames

SHAPES = vae_shapes(VAE_WIDTH)


@torch.no_grad()
def videos(count: int, seed: int, sizes: Sizes, device: torch.device) -> Tensor:
    """Render walks, uint8 [count, frames, height, width, 3]."""
    scenes = random_scenes(count, seed, sizes.video_frames, random_walks, TRIES)
    parts = []
    for start in range(0, count, sizes.fill):
        some = scenes[start : start + sizes.fill].to(device)
        pictures = render(some.rooms, some.c2w, sizes.height, sizes.width)
        parts.append(((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 1, 3, 4, 2).contiguous())
    return torch.cat(parts)


def train_coder(start: Parameters, phase: Phase, sizes: Sizes, seed: int, log: Log) -> Parameters:
    """Train a VAE on crops, then on whole frames. Its latents are not normalised."""
    pool = videos(sizes.videos, seed, sizes, start.flat.device)
    log.write(phase="vae", rendered=len(pool))
    start.flat.requires_grad_()
    choice = torch.Generator().manual_seed(seed)
    whole = replace(sizes, clips=sizes.whole, clip_frames=sizes.whole_frames, crop=(sizes.height, sizes.width))

    def slope(progress: float) -> tuple[Tensor, Tensor]:
        pixels = _clips(pool, whole if progress >= WHOLE_FROM else sizes, choice)
        return slope_of(start, lambda weights: _loss(weights, pixels))

    return fit("vae", start, slope, phase, RATE, log, most_decay=0.999)


def _loss(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """Return the loss of pixels uint8 [n, f, h, w, 3]: error, differences between neighbours, KL divergence."""
    clips = pixels.to(compute_dtype(pixels.device)) / 127.5 - 1
    mean, log_variance = encode(weights, clips).float().chunk(2, -1)
    log_variance = log_variance.clamp(-12, 4)
    noise = torch.randn_like(mean)
    latent = mean + (0.5 * log_variance).exp() * noise
    error = decode(weights, latent.to(clips.dtype)).float() - clips.float()
    weight = F.pad(torch.ones(error.shape[1] - 1, device=error.device), (1, 0), value=3.0)
    each = 4 * error.square() + 0.3 * error.abs()
    edges = error.diff(dim=2).abs().mean((0, 2, 3, 4)) + error.diff(dim=3).abs().mean((0, 2, 3, 4))
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    return ((each.mean((0, 2, 3, 4)) + EDGES * edges) * weight).sum() / weight.sum() + KL * divergence


def _clips(pool: Tensor, sizes: Sizes, choice: torch.Generator) -> Tensor:
    """Crop random videos, all at the same place and time. Some batches have grey after the first frame."""
    index = torch.randint(0, len(pool), (sizes.clips,), generator=choice).to(pool.device, non_blocking=True)
    room = sizes.video_frames - sizes.clip_frames, sizes.height - sizes.crop[0], sizes.width - sizes.crop[1]
    draws = torch.rand(3, generator=choice).tolist()
    time, top, left = (int(draw * (most + 1)) for draw, most in zip(draws, room, strict=True))
    clips = pool[index, time : time + sizes.clip_frames, top : top + sizes.crop[0], left : left + sizes.crop[1]]
    if float(torch.rand((), generator=choice)) < 1 / GREY:
        clips[:, 1:] = MIDDLE
    return clips


@torch.no_grad()
def normalised(parameters: Parameters, sizes: Sizes, seed: int) -> Parameters:
    """Return the VAE with latents of Wan's mean and deviation, by its encoder's last and its decoder's first layer."""
    device = parameters.flat.device
    pool = videos(min(256, sizes.videos), seed, sizes, device)
    weights, total = parameters.named(), torch.zeros(2, LATENT_CHANNELS, device=device)
    parts = [part.float() / 127.5 - 1 for part in pool.split(max(1, sizes.encoded // 2))]
    for part in parts:
        latent = latent_mean(weights, part).flatten(0, -2)
        total += torch.stack([latent.mean(0), latent.square().mean(0)]) / len(parts)
    return Parameters(parameters.shapes, with_statistics(parameters, total[0], (total[1] - total[0] ** 2).sqrt()))


def decibels(error: Tensor) -> float:
    """Return the PSNR of a mean squared error of colours from 0 to 1."""
    return round(float(-10 * torch.log10(error.clamp(min=1e-10))), 2)


def with_statistics(parameters: Parameters, mean: Tensor, std: Tensor) -> Tensor:
    """Return flat parameters with Wan's latent statistics in place of the given ones."""
    changed = Parameters(parameters.shapes, parameters.flat.detach().clone())
    weights, own = changed.named(), slice(0, LATENT_CHANNELS)
    wan_mean, wan_std = torch.tensor([MEAN, STD], device=mean.device)
    share = wan_std / std
    weights["conv1.weight"][own] *= share[:, None, None, None, None]
    weights["conv1.bias"][own] = (weights["conv1.bias"][own] - mean) * share + wan_mean
    first = weights["conv2.weight"][:, :, 0, 0, 0]
    weights["conv2.bias"] += first @ (mean - wan_mean / share)
    first /= share
    return changed.flat
