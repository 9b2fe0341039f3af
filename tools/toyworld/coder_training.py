"""Training of the VAE on rendered videos, and the fitting of its latent to the normalisation that Wan's VAE has."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...options import CELL
from ...vae.network import LATENT_CHANNELS
from ...vae.weights import MEAN, STD, vae_shapes
from .coder import decode, encode, latent_mean
from .fit import Log, Phase, fit
from .parameters import Parameters
from .render import night, render
from .rooms import random_scenes
from .settings import VAE_WIDTH, Sizes, compute_dtype
from .team import Team

RATE = 2e-3
KL = 5e-4
WHOLE_FROM = 0.6
"""From this progress on, whole videos instead of cut-outs."""
GREY = 8
"""One clip in so many is an image with grey frames after it, as the encoder gets it in use."""

SHAPES = vae_shapes(VAE_WIDTH)


DECODER_SHAPES = {name: shape for name, shape in SHAPES.items() if name.startswith(("decoder.", "conv2."))}
DECODER_RATE = 2e-4
IMAGES, CLIPS, CLIP_FRAMES = 160, 16, 17
"""Of `train_decoder`: first frames, and beginnings of videos that have so many frames."""
IMAGES_AT_ONCE, CLIPS_AT_ONCE = 4, 1
TAKEN = 0.7
"""How much of its change is taken: all of it costs later frames more than it gives the first one."""
NIGHTS = 4
"""One picture or video in so many is at night, as the LoRA makes it; the encoder has not learned that."""


def videos(count: int, seed: int, sizes: Sizes, device: torch.device, frames: int | None = None) -> Tensor:
    """Rendered videos uint8 [count, frames, height, width, 3]; only the first `frames` of each, where given."""
    parts = []
    for start in range(0, count, sizes.fill):
        scenes = random_scenes(min(sizes.fill, count - start), seed + start, sizes.frames).to(device)
        pictures = render(scenes.rooms, scenes.c2w[:, :frames], sizes.height, sizes.width)
        parts.append(((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 1, 3, 4, 2).contiguous())
    return torch.cat(parts)


def train_coder(
    start: Parameters, team: Team, phase: Phase, sizes: Sizes, seed: int, rate: float, log: Log
) -> Parameters:
    """A VAE whose latents have no particular mean and deviation yet. Each process renders videos of its own."""
    pool = videos(sizes.videos, seed + 100_000 * team.rank, sizes, team.device)
    log.write(phase="vae", rendered=len(pool))
    random = torch.Generator(team.device).manual_seed(seed + team.rank)
    dtype = compute_dtype(team.device)

    def loss(weights: dict[str, Tensor], progress: float) -> Tensor:
        clips = _whole(pool, sizes, random) if progress >= WHOLE_FROM else _cut_outs(pool, sizes, random)
        clips = clips.to(dtype) / 127.5 - 1
        clips[::GREY][:, 1:] = 0
        return _loss(weights, clips, random)

    return fit("vae", start, loss, team, phase, RATE * rate, log, most_decay=0.995)


def _loss(weights: dict[str, Tensor], clips: Tensor, random: torch.Generator) -> Tensor:
    mean, log_variance = encode(weights, clips).float().chunk(2, -1)
    log_variance = log_variance.clamp(-12, 4)
    noise = torch.randn(mean.shape, device=mean.device, generator=random)
    latent = mean + (0.5 * log_variance).exp() * noise
    error = (decode(weights, latent.to(clips.dtype)).float() - clips.float()).movedim(1, 0)
    each = 4 * error.square().flatten(1).mean(1) + 0.5 * error.abs().flatten(1).mean(1)
    weight = torch.ones_like(each)
    weight[0] = 2
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    return (each * weight).sum() / weight.sum() + KL * divergence


def train_decoder(
    start: Parameters, team: Team, phase: Phase, sizes: Sizes, seed: int, rate: float, log: Log
) -> Parameters:
    """The VAE with its decoder trained on, by the square error alone. The encoder stays, so latents and experts do.

    Half of the loss is of first frames, half of cut-outs of videos' beginnings."""
    frozen = {name: tensor.detach() for name, tensor in start.named().items()}
    seed += 100_000 * team.rank
    images, clips = (
        _coded(frozen, _some_at_night(videos(min(count, sizes.videos), start, sizes, team.device, frames)), sizes)
        for count, start, frames in ((IMAGES, seed, 1), (CLIPS, seed + 50_000, CLIP_FRAMES))
    )
    log.write(phase="decoder", rendered=len(images[0]) + len(clips[0]))
    random = torch.Generator(team.device).manual_seed(seed)

    def loss(decoder: dict[str, Tensor], _progress: float) -> Tensor:
        weights, several = {**frozen, **decoder}, _some(images, IMAGES_AT_ONCE, random)
        cut = _cells(_some(clips, CLIPS_AT_ONCE, random), sizes.crop, random)
        return _squared(weights, *several) + _squared(weights, *cut)

    decoder = Parameters.of(frozen, DECODER_SHAPES, team.device)
    trained = fit("decoder", decoder, loss, team, phase, DECODER_RATE * rate, log, most_decay=0.98).named()
    part_way = {name: torch.lerp(frozen[name], tensor, TAKEN) for name, tensor in trained.items()}
    return Parameters.of({**frozen, **part_way}, SHAPES, team.device)


def _some_at_night(pictures: Tensor) -> Tensor:
    """Videos uint8 [n, f, height, width, 3], one in NIGHTS of them at night."""
    dark = night(pictures[::NIGHTS].movedim(-1, 2).float() / 127.5 - 1)
    pictures[::NIGHTS] = ((dark + 1) * 127.5).round().to(torch.uint8).movedim(2, -1)
    return pictures


def _squared(weights: dict[str, Tensor], latent: Tensor, wanted: Tensor) -> Tensor:
    return F.mse_loss(decode(weights, latent).float(), wanted.float() / 127.5 - 1)


@torch.no_grad()
def _coded(weights: dict[str, Tensor], pictures: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Latents [n, f, h, w, 16] of videos, and the videos."""
    dtype = compute_dtype(pictures.device)
    parts = pictures.split(max(1, sizes.encoded // 4))
    return torch.cat([latent_mean(weights, part.to(dtype) / 127.5 - 1) for part in parts]), pictures


def _some(coded: tuple[Tensor, Tensor], count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    index = torch.randint(0, len(coded[0]), (count,), device=coded[0].device, generator=random)
    return coded[0][index], coded[1][index]


def _cells(coded: tuple[Tensor, Tensor], crop: tuple[int, int], random: torch.Generator) -> tuple[Tensor, Tensor]:
    """A cut-out of `crop` pixels at a random latent cell."""
    latent, pictures = coded
    draws = torch.rand(2, device=latent.device, generator=random).tolist()
    high, wide = (pixels // CELL for pixels in crop)
    top, left = (
        int(draw * (size - part + 1)) for draw, size, part in zip(draws, latent.shape[2:4], (high, wide), strict=True)
    )
    return (
        latent[:, :, top : top + high, left : left + wide],
        pictures[:, :, CELL * top : CELL * (top + high), CELL * left : CELL * (left + wide)],
    )


def _cut_outs(pool: Tensor, sizes: Sizes, random: torch.Generator) -> Tensor:
    """Clips of random places and times, all of a batch from one place of the picture, which is one copy."""
    index = torch.randint(0, len(pool), (sizes.clips,), device=pool.device, generator=random)
    room = sizes.frames - sizes.clip_frames, sizes.height - sizes.crop[0], sizes.width - sizes.crop[1]
    draws = torch.rand(3, device=pool.device, generator=random).tolist()
    time, top, left = (int(draw * (most + 1)) for draw, most in zip(draws, room, strict=True))
    return pool[index, time : time + sizes.clip_frames, top : top + sizes.crop[0], left : left + sizes.crop[1]]


def _whole(pool: Tensor, sizes: Sizes, random: torch.Generator) -> Tensor:
    return pool[torch.randint(0, len(pool), (sizes.whole,), device=pool.device, generator=random)]


@torch.no_grad()
def normalised(parameters: Parameters, team: Team, sizes: Sizes, seed: int) -> Parameters:
    """The same VAE with latents of Wan's mean and deviation in each channel, so that the engine's fixed normalisation
    gives 0 and 1. It is put into the encoder's last layer and the decoder's first one."""
    pool = videos(min(256, sizes.videos), seed + 100_000 * team.rank, sizes, team.device)
    weights, total = parameters.named(), torch.zeros(2, LATENT_CHANNELS, device=team.device)
    parts = [part.float() / 127.5 - 1 for part in pool.split(sizes.encoded // 2)]
    for part in parts:
        latent = latent_mean(weights, part).flatten(0, -2)
        total += torch.stack([latent.mean(0), latent.square().mean(0)]) / len(parts)
    team.average_(total)
    return Parameters(parameters.shapes, with_statistics(parameters, total[0], (total[1] - total[0] ** 2).sqrt()))


def with_statistics(parameters: Parameters, mean: Tensor, std: Tensor) -> Tensor:
    """Parameters of a VAE, flat, whose latents have these statistics, changed so that they have Wan's."""
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
