"""The VAE's network over whole videos, differentiable, with the numbers of `vae.network`, and its training.

Frames of all videos are one batch [B * T, C, H, W] in channels-last memory; `batch` is B."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...vae.network import LATENT_CHANNELS
from ...vae.weights import MEAN, STD, vae_shapes
from .fit import Log, Phase, fit, slope_of
from .parameters import Parameters, Weights
from .render import render
from .rooms import random_scenes
from .settings import TRIES, VAE_WIDTH, Sizes, compute_dtype
from .walks import random_walks

EPSILON = 1e-8  # the epsilon of the norms. With the engine's 1e-24 the gradient at a norm of zero would be infinite.
LAST_STAGE = 3  # the decoder's stage at full size
RATE = 2e-3
KL = 2e-4
EDGES = 0.4
WHOLE_FROM = 0.65  # the progress after which whole frames replace crops
GREY, MIDDLE = 10, 127  # one batch in so many has grey after its first frames

SHAPES = vae_shapes(VAE_WIDTH)


def encode(weights: Weights, video: Tensor) -> Tensor:
    """Return mean and log variance [B, (T - 1) / 4 + 1, H / 8, W / 8, 32] of a video [B, T, H, W, 3]."""
    batch, x = len(video), _frames(video)
    x = _causal(weights, "encoder.conv1", x, batch)
    for stage in range(4):
        for layer in (3 * stage, 3 * stage + 1):
            x = _residual(weights, f"encoder.downsamples.{layer}", x, batch)
        if stage < 3:
            name = f"encoder.downsamples.{3 * stage + 2}"
            x = _conv(weights, f"{name}.resample.1", F.pad(x, (0, 1, 0, 1)), 2, 0)
            x = _halve_time(weights, f"{name}.time_conv", x, batch)
    x = _middle(weights, "encoder", x, batch)
    return _video(_conv(weights, "conv1", _activated(weights, "encoder.head.0", "encoder.head.2", x, batch)), batch)


def decode(weights: Weights, latent: Tensor) -> Tensor:
    """Return the video [B, 4 * (f - 1) + 1, 8h, 8w, 3] of an unnormalised latent [B, f, h, w, 16]."""
    return last_stage(weights, before_last_stage(weights, latent))


def before_last_stage(weights: Weights, latent: Tensor) -> Tensor:
    """Return the input [B, 4 * (f - 1) + 1, 8h, 8w, c] of the decoder's last stage."""
    batch, x = len(latent), _frames(latent)
    x = _causal(weights, "decoder.conv1", _conv(weights, "conv2", x), batch)
    x = _middle(weights, "decoder", x, batch)
    for stage in range(LAST_STAGE):
        x = _stage(weights, stage, x, batch)
        name = f"decoder.upsamples.{4 * stage + 3}"
        x = _double_time(weights, f"{name}.time_conv", x, batch)
        x = _conv(weights, f"{name}.resample.1", F.interpolate(x, scale_factor=2.0, mode="nearest"))
    return _video(x, batch)


def last_stage(weights: Weights, x: Tensor) -> Tensor:
    """Return the video [B, F, H, W, 3] from `before_last_stage`, or from a crop of it."""
    batch = len(x)
    x = _stage(weights, LAST_STAGE, _frames(x), batch)
    return _video(_activated(weights, "decoder.head.0", "decoder.head.2", x, batch), batch)


def _stage(weights: Weights, stage: int, x: Tensor, batch: int) -> Tensor:
    for layer in range(4 * stage, 4 * stage + 3):
        x = _residual(weights, f"decoder.upsamples.{layer}", x, batch)
    return x


def latent_mean(weights: Weights, video: Tensor) -> Tensor:
    """Return the unnormalised latent [B, f, h, w, 16] as the engine's encoder computes it."""
    return encode(weights, video)[..., :LATENT_CHANNELS]


def _frames(video: Tensor) -> Tensor:
    return video.flatten(0, 1).permute(0, 3, 1, 2)


def _video(frames: Tensor, batch: int) -> Tensor:
    return frames.permute(0, 2, 3, 1).unflatten(0, (batch, -1))


def _conv(weights: Weights, name: str, x: Tensor, stride: int = 1, padding: int | None = None) -> Tensor:
    weight = weights[f"{name}.weight"]
    if weight.ndim == 5:
        weight = weight.transpose(1, 2).flatten(1, 2)
    weight = weight.to(x.dtype, memory_format=torch.channels_last)
    around = weight.shape[-1] // 2 if padding is None else padding
    return F.conv2d(x, weight, weights[f"{name}.bias"].to(x.dtype), stride, around)


def _causal(weights: Weights, name: str, x: Tensor, batch: int) -> Tensor:
    stacked: Tensor = _Stacked.apply(x.permute(0, 2, 3, 1).unflatten(0, (batch, -1)))
    return _conv(weights, name, stacked.flatten(0, 1).permute(0, 3, 1, 2))


class _Stacked(torch.autograd.Function):
    """Each frame's channels after those of the two before, [B, T, H, W, 3C]. torch alone would copy five times."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        channels = x.shape[-1]
        out = x.new_empty(*x.shape[:-1], 3 * channels)
        for place in range(3):
            ago, part = 2 - place, slice(place * channels, (place + 1) * channels)
            out[:, :ago, ..., part] = 0
            out[:, ago:, ..., part] = x[:, : x.shape[1] - ago]
        return out

    @staticmethod
    def backward(_ctx: Any, *slopes: Tensor) -> Tensor:
        long_before, before, now = slopes[0].chunk(3, -1)
        total = now.clone(memory_format=torch.contiguous_format)
        total[:, :-1] += before[:, 1:]
        total[:, :-2] += long_before[:, 2:]
        return total


def _norm(x: Tensor, gamma: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPSILON) * gamma[:, None, None]


def _activated(weights: Weights, norm: str, conv: str, x: Tensor, batch: int) -> Tensor:
    gamma = weights[f"{norm}.gamma"].flatten()
    return _causal(weights, conv, F.silu(_norm(x, gamma)).to(x.dtype), batch)


def _residual(weights: Weights, name: str, x: Tensor, batch: int) -> Tensor:
    change = _activated(weights, f"{name}.residual.0", f"{name}.residual.2", x, batch)
    change = _activated(weights, f"{name}.residual.3", f"{name}.residual.6", change, batch)
    return change + (_conv(weights, f"{name}.shortcut", x) if f"{name}.shortcut.weight" in weights else x)


def _middle(weights: Weights, side: str, x: Tensor, batch: int) -> Tensor:
    x = _residual(weights, f"{side}.middle.0", x, batch)
    x = x + _attention(weights, f"{side}.middle.1", x)
    return _residual(weights, f"{side}.middle.2", x, batch)


def _attention(weights: Weights, name: str, x: Tensor) -> Tensor:
    normed = _norm(x, weights[f"{name}.norm.gamma"].flatten()).to(x.dtype)
    qkv = _conv(weights, f"{name}.to_qkv", normed).flatten(2).transpose(1, 2)[:, None]
    query, key, value = (part.contiguous() for part in qkv.chunk(3, -1))
    out = F.scaled_dot_product_attention(query, key, value)
    return _conv(weights, f"{name}.proj", out[:, 0].transpose(1, 2).unflatten(2, x.shape[2:]))


def _halve_time(weights: Weights, name: str, x: Tensor, batch: int) -> Tensor:
    if f"{name}.weight" not in weights:
        return x
    videos = x.unflatten(0, (batch, -1))
    triples = torch.cat([videos[:, :-2:2], videos[:, 1:-1:2], videos[:, 2::2]], 2)
    return _after_first(videos, _conv(weights, name, _channels_last(triples.flatten(0, 1))), batch)


def _double_time(weights: Weights, name: str, x: Tensor, batch: int) -> Tensor:
    if f"{name}.weight" not in weights:
        return x
    videos = x.unflatten(0, (batch, -1))
    pairs = _causal(weights, name, _channels_last(videos[:, 1:].flatten(0, 1)), batch)
    return _after_first(videos, torch.stack(pairs.chunk(2, 1), 1).flatten(0, 1), batch)


def _after_first(videos: Tensor, rest: Tensor, batch: int) -> Tensor:
    return _channels_last(torch.cat([videos[:, :1], rest.unflatten(0, (batch, -1))], 1).flatten(0, 1))


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


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
