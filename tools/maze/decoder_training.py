"""Training of the VAE's decoder on what the denoiser makes of walks. The encoder stays, so latents and denoiser do.

What the denoiser makes of a walk is softer than what the encoder makes of its pictures, the more the longer it goes.
The decoder learns to make the renderer's pictures of both. An adversary keeps it from painting means."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ...vae.weights import MEAN, STD
from ..toyworld.camera_map import ray_patches
from ..toyworld.coder import decode
from ..toyworld.fit import Log, Phase
from ..toyworld.parameters import Parameters, Weights
from ..toyworld.settings import compute_dtype
from ..toyworld.team import Team
from .adversary import PICTURES, Adversary
from .camera_map import camera_patches
from .coder_training import EDGES, SHAPES
from .denoiser import fastest, few_steps
from .depth import config_of
from .fit import fit, replayed, slope_of
from .pool import Pool, given, settled, walks_seen
from .settings import SINK, WINDOW, Sizes
from .spans import chunks
from .twin import causal_velocity

DECODER = {name: shape for name, shape in SHAPES.items() if name.startswith(("decoder.", "conv2."))}
RATE = 5e-4
CLIP, WARM = 6, 3
"""Latent frames of a clip; those at its begin that only warm the decoder up, where it begins within a walk."""
BEGINNINGS = 0.35
"""The share of the clips that are a walk's beginnings: these are learned whole."""
TRUE = 0.3
"""The share of the clips whose latents are the encoder's."""
FIRST = 3.0
"""How much more a walk's first frame counts: it is the picture that was given."""


class Watched(NamedTuple):
    """n walks: pictures uint8 [n, 4 f - 3, height, width, 3], and their latents [n, f, h, w, 16] as the decoder takes
    them, the encoder's (`true`) and the denoiser's (`made`)."""

    pictures: Tensor
    true: Tensor
    made: Tensor


def watched(vae: Weights, denoiser: Weights, texts: Tensor, count: int, seed: int, sizes: Sizes) -> Watched:
    """Walks that are rendered, encoded and made, each beginning with its own noise."""
    random, parts = Generator(texts.device).manual_seed(seed), list[Watched]()
    grey = settled(vae, sizes, texts.device)
    for pool, pictures in walks_seen(vae, count, seed, sizes, texts.device):
        made = torch.cat(list(_made(denoiser, pool, texts, grey, sizes, random)))
        seen = ((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 1, 3, 4, 2)
        parts.append(Watched(seen.contiguous(), _plain(pool.latent), _plain(made)))
    return Watched(*(torch.cat(part) for part in zip(*parts, strict=True)))


@torch.no_grad()
def _made(
    weights: Weights, pool: Pool, texts: Tensor, grey: Tensor, sizes: Sizes, random: Generator
) -> Iterator[Tensor]:
    """Latents [n, 16, f, h, w] as a rollout makes them in chunks of 1, with one step and the window. All chunks are
    made at once, after what they were the time before: after f times each comes after what the rollout has made."""
    frames, config, device = pool.latent.shape[2], config_of(weights), texts.device
    attends = chunks(frames, 1, WINDOW * sizes.half // 12, SINK * sizes.half // 12)
    sigma, rays, dtype = few_steps(device)[0], ray_patches(sizes.height, sizes.width, device), compute_dtype(device)
    for first in range(0, len(pool), sizes.batch):
        some = pool[first : first + sizes.batch]
        image, camera = given(some.first, grey, frames), camera_patches(some.steps, rays)
        noise = torch.randn(some.latent.shape, device=device, generator=random)
        asked, times = torch.cat([noise, image], 1), (1000 * sigma).floor().expand(len(some), frames)
        made = noise
        for _ in range(frames):
            speed = causal_velocity(weights, config, torch.cat([made, image], 1), asked, times, texts[some.kinds],
                                    camera, attends, 0, dtype, fastest(device))  # fmt: skip
            made = noise - sigma * speed
        yield made


def _plain(latent: Tensor) -> Tensor:
    """Normalised latents [n, 16, f, h, w] as the decoder takes them [n, f, h, w, 16]."""
    mean, std = torch.tensor([MEAN, STD], device=latent.device)
    return (latent.float().movedim(1, -1) * std + mean).to(compute_dtype(latent.device))


def train_decoder(
    vae: Weights, data: Watched, team: Team, phase: Phase, sizes: Sizes, rate: float, log: Log, seed: int,
    adversary: float,
) -> Parameters:  # fmt: skip
    """The VAE with its decoder trained on. adversary: the length of its gradient by the pictures against the error's, 0
    for none."""
    random = Generator(team.device).manual_seed(5000 + seed + 100_000 * team.rank)
    judge = Adversary(seed + team.rank, team.device, random, adversary, PICTURES) if adversary else None
    start = Parameters.of(vae, DECODER, team.device)
    start.flat.requires_grad_()
    once = partial(slope_of, start, partial(loss, data, sizes, random, judge))
    run = once if team.device.type == "cpu" else replayed(once, random)
    trained = fit("decoder", start, lambda _progress: run(), team, phase, RATE * rate, log, most_decay=0.998)
    return Parameters.of({**vae, **trained.named()}, SHAPES, team.device)


def loss(data: Watched, sizes: Sizes, random: Generator, judge: Adversary | None, decoder: Weights) -> Tensor:
    """Squared and absolute error of random clips, and that of the differences between neighbours; with the adversary's
    gradient, where there is one."""
    latent, pictures, learned = _clips(data, sizes, random)
    made, wanted = decode(decoder, latent).float(), pictures.float() / 127.5 - 1
    error = made - wanted
    each = (4 * error.square() + 0.3 * error.abs()).mean((2, 3, 4))
    edges = error.diff(dim=2).abs().mean((2, 3, 4)) + error.diff(dim=3).abs().mean((2, 3, 4))
    value = ((each + EDGES * edges) * learned).sum() / learned.sum()
    if judge is None:
        return value
    slope = torch.autograd.grad(value, made, retain_graph=True)[0]
    slope, own, true = (part.movedim(-1, 1) for part in (slope, made.detach(), wanted))
    aim = (made * judge.added(slope, own, true, learned.clamp(max=1)).movedim(1, -1)).sum()
    return aim + (value - aim).detach()


def _clips(data: Watched, sizes: Sizes, random: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [n, clip, h, w, 16] and pictures [n, frames, height, width, 3] of random clips, and how much each frame
    counts [n, frames]."""
    device, count, clip = data.true.device, sizes.whole, min(CLIP, data.true.shape[1])

    def draw() -> Tensor:
        return torch.rand(count, device=device, generator=random)

    walk, room = (draw() * len(data.true)).long(), data.true.shape[1] - clip
    first = torch.where(draw() < BEGINNINGS, 0, 1 + (draw() * room).long()).clamp(max=room)
    frame = first[:, None] + torch.arange(clip, device=device)
    true, made = data.true[walk[:, None], frame], data.made[walk[:, None], frame]
    latent = torch.where((draw() < TRUE)[:, None, None, None, None], true, made)
    picture = torch.arange(4 * clip - 3, device=device)
    learned = ((first[:, None] == 0) | (picture > 4 * WARM)).float()
    learned[:, 0] *= FIRST
    return latent, data.pictures[walk[:, None], 4 * first[:, None] + picture], learned


@torch.no_grad()
def measured_decoder(vae: Weights, data: Watched) -> dict[str, float]:
    """Of walks, of the encoder's latents and of the denoiser's: PSNR of first frames and later ones, and the sharpness
    of these as a share of the renderer's."""
    found: dict[str, float] = {}
    for name, latents in (("true", data.true), ("made", data.made)):
        errors, sharp = [], []
        for latent, seen in zip(latents.split(1), data.pictures.split(1), strict=True):
            made, wanted = decode(vae, latent).float().clamp(-1, 1), seen.float() / 127.5 - 1
            errors.append(((made - wanted) / 2).square().mean((0, 2, 3, 4)))
            sharp.append(torch.stack([_sharpness(part[:, 1:]) for part in (made, wanted)]))
        error, (own, wanted_sharp) = torch.stack(errors), torch.stack(sharp).mean(0)
        found |= {f"{name} first": _decibels(error[:, 0].mean()), f"{name} later": _decibels(error[:, 1:].mean()),
                  f"{name} sharpness": round(float(own / wanted_sharp), 3)}  # fmt: skip
    return found


def _sharpness(pictures: Tensor) -> Tensor:
    return pictures.diff(dim=2).square().mean() + pictures.diff(dim=3).square().mean()


def _decibels(error: Tensor) -> float:
    return round(float(-10 * torch.log10(error.clamp(min=1e-10))), 2)
