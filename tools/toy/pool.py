"""The denoiser's training data: rendered walks as latents, with image, camera and captions."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ...vae.encoding import SETTLED
from ...vae.weights import MEAN, STD
from .coder import latent_mean
from .parameters import Weights
from .render import render
from .rooms import Rooms, Rows, random_scenes
from .settings import TRIES, Sizes, compute_dtype
from .walks import random_walks, steps_of

WARM = 3  # the latent frames before the second half of a walk, as many as the encoder's state depends on
FURTHEST = 96  # latent frames after which a walk's second half begins at most
AT_ONCE, HALFWAY = 0.2, 0.45  # cumulated shares of walks that change after the first frame and at the half


@dataclass(frozen=True)
class Pool(Rows):
    """n walks of two halves with f latent frames in all."""

    latent: Tensor  # [n, 16, f, h, w], normalised
    first: Tensor  # [n, 16, f / 2, h, w], the first frame followed by grey
    steps: Tensor  # [n, f, 4, 4], `steps_of` the requested camera
    kinds: Tensor  # [n, 2], the kind of the house in each half


def walks(vae: Weights, count: int, seed: int, sizes: Sizes, device: torch.device) -> Pool:
    """Render walks in one piece. Some change weather or walls after the first frame or the first half."""
    return Pool.joined([pool for pool, _ in walks_seen(vae, count, seed, sizes, device)])


def walks_seen(
    vae: Weights, count: int, seed: int, sizes: Sizes, device: torch.device
) -> Iterator[tuple[Pool, Tensor]]:
    """Yield the same walks, `sizes.fill` at a time, with their frames [n, f, 3, height, width]."""
    early, frames = 4 * sizes.half - 3, 8 * sizes.half - 3
    scenes = random_scenes(count, seed, frames, random_walks, TRIES)
    both, seen, kinds = _changing(scenes.rooms, early, frames, torch.Generator().manual_seed(seed + 1))
    both = both.to(device)
    for start in range(0, count, sizes.fill):
        part = slice(start, start + sizes.fill)
        looks = both[seen[part].flatten().to(device)]
        pictures = render(looks, scenes.c2w[part].to(device), sizes.height, sizes.width)
        with torch.no_grad():
            first = latents(vae, only_first(pictures[:, :early]), sizes)
            latent = latents(vae, pictures, sizes)
        steps = steps_of(scenes.asked[part, ::4]).to(device)
        yield Pool(latent, first, steps, kinds[part].to(device)), pictures


def _changing(rooms: Rooms, early: int, frames: int, generator: Generator) -> tuple[Rooms, Tensor, Tensor]:
    """Return all houses [2 n], the index of the one in each frame [n, frames], and the kinds of both halves [n, 2]."""
    chance, after = torch.rand(len(rooms), generator=generator), rooms.changed(generator)
    cut = torch.where(chance < AT_ONCE, 1, torch.where(chance < HALFWAY, early, frames))
    kinds = torch.stack([rooms.kinds(), after.kinds()], 1)
    kinds[cut == 1, 0], kinds[cut == frames, 1] = kinds[cut == 1, 1], kinds[cut == frames, 0]
    both = Rooms.joined([rooms, after])
    seen = torch.arange(len(rooms))[:, None] + len(rooms) * (torch.arange(frames) >= cut[:, None])
    return both, seen, kinds


@torch.no_grad()
def later_walks(vae: Weights, count: int, seed: int, sizes: Sizes, device: torch.device) -> Pool:
    """Render walks with a gap before the second half."""
    half, generator = sizes.half, torch.Generator().manual_seed(seed + 1)
    begin = half + WARM + int(torch.randint(1, max(2, FURTHEST * half // 12), (), generator=generator))
    scenes = random_scenes(count, seed, 4 * (begin + half) - 3, random_walks, TRIES)
    steps = steps_of(scenes.asked[:, ::4])
    steps = torch.cat([steps[:, :half], steps[:, begin : begin + half]], 1).to(device)
    made = []
    for start in range(0, count, sizes.fill):
        part = slice(start, start + sizes.fill)
        rooms, c2w = scenes.rooms[part].to(device), scenes.c2w[part].to(device)
        early = render(rooms, c2w[:, : 4 * half - 3], sizes.height, sizes.width)
        late = render(rooms, c2w[:, 4 * (begin - WARM) :], sizes.height, sizes.width)
        latent = torch.cat([latents(vae, early, sizes), latents(vae, late, sizes)[:, :, WARM:]], 2)
        kinds = rooms.kinds()[:, None].expand(-1, 2)
        made.append(Pool(latent, latents(vae, only_first(early), sizes), steps[part], kinds))
    return Pool.joined(made)


def settled(vae: Weights, sizes: Sizes, device: torch.device) -> Tensor:
    """Return the latent [1, 16, 1, h, w] of grey long after an image."""
    grey = torch.zeros(1, 4 * SETTLED - 3, 3, sizes.height, sizes.width, device=device)
    return latents(vae, grey, sizes)[:, :, -1:]


def given(first: Tensor, grey: Tensor, frames: int) -> Tensor:
    """Return mask and image latent [n, 20, frames, h, w] from `Pool.first` and `settled`."""
    image = torch.cat([first, grey.expand(len(first), -1, max(0, frames - first.shape[2]), -1, -1)], 2)[:, :, :frames]
    mask = torch.zeros_like(image[:, :4])
    mask[:, :, 0] = 1
    return torch.cat([mask, image], 1).float()


def only_first(pictures: Tensor) -> Tensor:
    """Return frames [n, f, 3, height, width] with grey in place of all but the first."""
    empty = torch.zeros_like(pictures)
    empty[:, 0] = pictures[:, 0]
    return empty


def latents(weights: Weights, pictures: Tensor, sizes: Sizes) -> Tensor:
    """Return normalised latents [n, 16, f, h, w] of frames [n, f, 3, height, width]."""
    dtype = compute_dtype(pictures.device)
    videos = pictures.permute(0, 1, 3, 4, 2).to(dtype)
    return torch.cat([normal(latent_mean(weights, part)) for part in videos.split(sizes.encoded)]).to(dtype)


def normal(latent: Tensor) -> Tensor:
    """Return normalised float32 [n, 16, f, h, w] of the encoder's latents [n, f, h, w, 16]."""
    mean, std = torch.tensor([MEAN, STD], device=latent.device)
    return ((latent.float() - mean) / std).movedim(-1, 1)


def plain(latent: Tensor) -> Tensor:
    """Return the decoder's input, float32 [n, f, h, w, 16], from normalised latents [n, 16, f, h, w]."""
    mean, std = torch.tensor([MEAN, STD], device=latent.device)
    return latent.float().movedim(1, -1) * std + mean
