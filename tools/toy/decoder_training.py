"""Training of the decoder's last stage for as much detail as the renderer has; encoder and denoiser are frozen."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from ...camera import pose_embedding
from ...model.dit import LingBotWorldModel
from ...options import CAUSAL_SHIFT, FAST_INDICES, Window
from ...pipeline.world import World
from ...sampling import few_step_schedule
from .coder import EDGES, LAST_STAGE, SHAPES, before_last_stage, decibels, last_stage
from .fit import Log, Phase, fit, slope_of
from .measure import sharpness
from .parameters import Parameters, Weights
from .pool import Pool, given, plain, settled, walks_seen
from .render import LENS
from .settings import SINK, WINDOW, Sizes, compute_dtype, config_of

LAST = {
    name: shape
    for name, shape in SHAPES.items()
    if name.startswith((*(f"decoder.upsamples.{4 * LAST_STAGE + part}." for part in range(3)), "decoder.head."))
}
RATE = 1e-3
DETAIL, PATCHES = 4.0, (8, 16)  # the weight of the error in detail, and the patch sizes in pixels
LEAST = 1e-4  # added to their mean squares, because less detail cannot be learned
CLIPS, CLIP, CROP = 6, 6, 72  # the crops of a step, their frames, and their height and width
WARM, EDGE = 4, 4  # frames at a clip's start, unless it begins its walk, and pixels at its edges that are not learned
BEGINNINGS, FIRST = 0.25, 3.0  # the share of clips that begin their walk, and the weight of the first frame


class Watched(NamedTuple):
    """n walks of f frames: images, and the inputs of the decoder's last stage."""

    pictures: Tensor  # uint8 [n, f, height, width, 3]
    true: Tensor  # [n, f, height, width, c], from the encoder's latents
    made: Tensor  # from the denoiser's latents


@torch.no_grad()
def watched(vae: Weights, denoiser: Weights, texts: Tensor, count: int, seed: int, sizes: Sizes) -> Watched:
    """Render walks, and generate each with new noise."""
    device, random, parts = texts.device, Generator().manual_seed(seed), list[Watched]()
    dtype, grey = compute_dtype(device), settled(vae, sizes, device)
    model = LingBotWorldModel(replace(config_of(denoiser), causal=True), dtype=dtype)
    model.load_state_dict(denoiser)
    model.to(device)
    for pool, pictures in walks_seen(vae, count, seed, replace(sizes, fill=min(sizes.fill, 4)), device):
        seen = ((pictures + 1) * 127.5).round().to(torch.uint8).permute(0, 1, 3, 4, 2)
        latents = pool.latent, made_of(model, pool, texts, grey, sizes, random)
        parts.append(Watched(seen, *(before_last_stage(vae, plain(each).to(dtype)).half() for each in latents)))
    return Watched(*(torch.cat(part) for part in zip(*parts, strict=True)))


@torch.no_grad()
def made_of(
    model: LingBotWorldModel, pool: Pool, texts: Tensor, grey: Tensor, sizes: Sizes, random: Generator
) -> Tensor:
    """Return latents [n, 16, f, h, w] of walks by the engine, in chunks of 1, one step and a window."""
    frames, cells, device = pool.latent.shape[2], pool.latent.shape[3:], texts.device
    image, schedule = given(pool.first, grey, frames), few_step_schedule(FAST_INDICES[:1], CAUSAL_SHIFT)
    window = Window(WINDOW * sizes.half // 12, SINK * sizes.half // 12)

    def noise(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=random)

    walks = []
    for index, steps in enumerate(pool.steps.double().cpu().numpy()):
        world, made = World(model, (cells[0], cells[1]), window, chunk=1, device=device), []
        camera = pose_embedding(steps, LENS[None], height=sizes.height, width=sizes.width).to(device)
        for frame in range(frames):
            one = slice(frame, frame + 1)
            world.prompt = texts[pool.kinds[index, int(2 * frame >= frames)]][None]
            y, seen = image[index : index + 1, :, one], camera[:, :, one]
            made.append(world.chunk(noise((1, 16, 1, *cells)), y, seen, schedule, noise))
        walks.append(torch.cat(made, 2))
    return torch.cat(walks)


def train_decoder(vae: Weights, data: Watched, phase: Phase, log: Log, seed: int) -> Parameters:
    """Return the VAE after training its decoder's last stage."""
    choice, device = Generator().manual_seed(seed), data.true.device
    last = Parameters.of(vae, LAST, device)

    def slope(_progress: float) -> tuple[Tensor, Tensor]:
        return slope_of(last, lambda weights: loss_of(weights, *clips(data, choice)))

    trained = fit("decoder", last, slope, phase, RATE, log, 0.99)
    return Parameters.of({**vae, **trained.named()}, SHAPES, device)


def loss_of(last: Weights, given_to: Tensor, pictures: Tensor, counts: Tensor) -> Tensor:
    """Return the loss of clips [n, f, h, w, ...] with frame weights [n, f]: errors of pixels, edges and `detail`."""
    made, wanted = last_stage(last, given_to.float()), pictures.float() / 127.5 - 1
    made, wanted = (part[:, :, EDGE:-EDGE, EDGE:-EDGE] for part in (made, wanted))
    error = made - wanted
    each = (4 * error.square() + 0.3 * error.abs()).mean((2, 3, 4))
    each = each + EDGES * sum(error.diff(dim=dim).abs().mean((2, 3, 4)) for dim in (2, 3))
    for size in PATCHES:
        off = (detail(made, size) - detail(wanted, size)).abs().mean((1, 2, 3))
        each = each + DETAIL * off.view_as(each)
    return (each * counts).sum() / counts.sum()


def detail(pictures: Tensor, size: int) -> Tensor:
    """Return the RMS of neighbours' differences, [n * f, 1, down, across], in half-overlapping patches of `size`."""
    down, across = pictures.diff(dim=2)[:, :, :, :-1], pictures.diff(dim=3)[:, :, :-1]
    square = (down.square() + across.square()).mean(-1).flatten(0, 1)[:, None]
    return (F.avg_pool2d(square, size, size // 2) + LEAST).sqrt()


def clips(data: Watched, choice: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return the arguments of `loss_of` for CLIPS random crops; `choice` is a CPU generator."""
    walks, frames, height, width = data.pictures.shape[:4]
    length, high, wide = min(CLIP, frames), min(CROP, height), min(CROP, width)
    features, pictures, counts = [], [], torch.ones(CLIPS, length)
    for row in range(CLIPS):
        draws = torch.rand(6, generator=choice)
        walk, top, left = (
            int(draw * room) for draw, room in zip(draws, (walks, height - high + 1, width - wide + 1), strict=False)
        )
        later = draws[3] >= BEGINNINGS and frames > length
        first = 1 + int(draws[4] * (frames - length)) if later else 0
        cut = walk, slice(first, first + length), slice(top, top + high), slice(left, left + wide)
        features.append((data.true if draws[5] < 0.5 else data.made)[cut])
        pictures.append(data.pictures[cut])
        counts[row] = (torch.arange(length) >= WARM).float() if later else counts[row]
        counts[row, 0] *= 1 if later else FIRST
    return torch.stack(features), torch.stack(pictures), counts.to(data.pictures.device)


@torch.no_grad()
def measured_decoder(vae: Weights, data: Watched) -> dict[str, float]:
    """Return the PSNR of first and later frames, and the sharpness of the later ones relative to the renderer's."""
    found: dict[str, float] = {}
    for name, features in (("true", data.true), ("made", data.made)):
        errors, sharp = [], []
        for part, seen in zip(features.split(1), data.pictures.split(1), strict=True):
            made, wanted = last_stage(vae, part.float()).clamp(-1, 1), seen.float() / 127.5 - 1
            errors.append(((made - wanted) / 2).square().mean((0, 2, 3, 4)))
            sharp.append(torch.tensor([sharpness(each[0, 1:].movedim(-1, 1)) for each in (made, wanted)]))
        error, (own, true) = torch.stack(errors), torch.stack(sharp).mean(0)
        found |= {
            f"{name} first": decibels(error[:, 0].mean()),
            f"{name} later": decibels(error[:, 1:].mean()),
            f"{name} sharpness": round(float(own / true), 3),
        }
    return found
