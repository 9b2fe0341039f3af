"""What the experts are trained on: rendered videos as latents, with their first frame's latent, poses and captions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from ...vae.weights import MEAN, STD
from .coder import decode, latent_mean
from .fit import Phase
from .parameters import Weights
from .render import render
from .rooms import Scenes, random_scenes
from .rows import Rows
from .settings import Sizes, compute_dtype
from .team import Team


class AtOnce(Protocol):
    """How many videos are encoded at once: some Sizes."""

    @property
    def encoded(self) -> int: ...


@dataclass(frozen=True)
class Pool(Rows):
    """n videos. latent and first [n, 16, f, h, w]: the video, and its first frame followed by grey, both normalised.
    poses [n, f, 4, 4] of the latent frames, kinds [n] of the rooms (`Rooms.kinds`)."""

    latent: Tensor
    first: Tensor
    poses: Tensor
    kinds: Tensor


@torch.no_grad()
def fill(weights: Weights, team: Team, phase: Phase, sizes: Sizes, seed: int) -> Pool:
    """Renders and encodes until the phase ends; then every process has the videos of all."""
    made: list[Pool] = []
    while not made or phase.progress(len(made)) < 1:
        scenes = random_scenes(sizes.fill, seed + 1000 * (100_000 * team.rank + len(made)), sizes.frames)
        made.append(encoded(weights, scenes.to(team.device), sizes)[0])
    count = team.least(len(made))
    own = Pool.joined(made[:count])
    return Pool(*(team.gather(getattr(own, field.name)) for field in fields(Pool)))


def encoded(weights: Weights, scenes: Scenes, sizes: Sizes) -> tuple[Pool, Tensor]:
    """The scenes as the experts get them, and their pictures [n, f, 3, height, width]."""
    pictures = render(scenes.rooms, scenes.c2w, sizes.height, sizes.width)
    return pool_of(scenes, latents(weights, pictures, sizes), latents(weights, only_first(pictures), sizes)), pictures


def pool_of(scenes: Scenes, latent: Tensor, first: Tensor) -> Pool:
    """The scenes with these latents as `Pool` has them."""
    return Pool(latent, first, scenes.c2w[:, ::4].contiguous(), scenes.rooms.kinds())


def only_first(pictures: Tensor) -> Tensor:
    """Pictures [n, f, 3, height, width] with grey instead of all but the first."""
    empty = torch.zeros_like(pictures)
    empty[:, 0] = pictures[:, 0]
    return empty


def latents(weights: Weights, pictures: Tensor, sizes: AtOnce) -> Tensor:
    """Normalised latents [n, 16, f, h, w] of pictures [n, f, 3, height, width]."""
    dtype = compute_dtype(pictures.device)
    videos = pictures.permute(0, 1, 3, 4, 2).to(dtype)
    return torch.cat([normal(latent_mean(weights, part)) for part in videos.split(sizes.encoded)]).to(dtype)


def normal(latent: Tensor) -> Tensor:
    """Latents [n, f, h, w, 16] of the encoder as the experts know them, float32 [n, 16, f, h, w]."""
    mean, std = torch.tensor([MEAN, STD], device=latent.device)
    return ((latent.float() - mean) / std).movedim(-1, 1)


def pictures_of(weights: Weights, latent: Tensor, sizes: AtOnce) -> Tensor:
    """Pictures float32 [n, f, 3, height, width], -1 to 1, of normalised latents [n, 16, f, h, w]."""
    mean, std = torch.tensor([MEAN, STD], device=latent.device)
    plain = latent.float().movedim(1, -1) * std + mean
    parts = [decode(weights, part).clamp(-1, 1) for part in plain.split(max(1, sizes.encoded // 4))]
    return torch.cat(parts).permute(0, 1, 4, 2, 3)
