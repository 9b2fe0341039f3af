"""Training of one expert by flow matching, on the noise levels at which the engine asks it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...model.ops.pointwise import or_else
from .camera_map import camera_patches, ray_patches
from .fit import Keep, Log, Phase, fit
from .parameters import Parameters
from .pool import Pool
from .prompts import draw
from .settings import CONFIG, SHIFT, SPLIT, Sizes, compute_dtype
from .team import Team
from .twin import block, velocity

RATE = 1.2e-3
SHAPES = CONFIG.parameter_shapes()


def train_expert(
    high: bool,
    start: Parameters,
    team: Team,
    phase: Phase,
    pool: Pool,
    texts: Tensor,
    sizes: Sizes,
    rate: float,
    log: Log,
    keep: Keep | None = None,
) -> Parameters:
    """The high-noise expert or the low-noise one, from `start`. texts: the embeddings of `prompts`."""
    random = torch.Generator(team.device).manual_seed(1000 + team.rank)
    dtype = compute_dtype(team.device)
    run = fastest_block(team.device)

    def loss(weights: dict[str, Tensor], _progress: float) -> Tensor:
        asked = drawn(high, pool, texts, sizes, random)
        return F.mse_loss(velocity(weights, CONFIG, *asked.inputs, dtype, run), asked.wanted)

    return fit("high" if high else "low", start, loss, team, phase, RATE * rate, log, 0.9993, keep)


class Asked(NamedTuple):
    """What an expert is asked in a step of its training: `inputs` of `velocity`, and the velocity wanted."""

    inputs: tuple[Tensor, Tensor, Tensor, Tensor]
    wanted: Tensor


def drawn(high: bool, pool: Pool, texts: Tensor, sizes: Sizes, random: torch.Generator) -> Asked:
    """A batch of random videos of the pool, each at a random noise level and with a prompt."""
    device = pool.latent.device
    batch = pool[torch.randint(0, len(pool), (sizes.batch,), device=device, generator=random)]
    sigma = noise_levels(high, torch.rand(sizes.batch, device=device, generator=random))
    clean = batch.latent.float()
    noise = torch.randn(clean.shape, device=device, generator=random)
    share = sigma[:, None, None, None, None]
    x = torch.cat([(1 - share) * clean + share * noise, image_conditioning(batch.first.float())], 1)
    camera = camera_patches(batch.poses, ray_patches(sizes.height, sizes.width, device))
    return Asked((x, (1000 * sigma).floor(), texts[draw(batch.kinds)], camera), noise - clean)


def noise_levels(high: bool, share: Tensor) -> Tensor:
    """Sigma of the `share` [n], 0 to 1, of an expert's part of the schedule."""
    base = SPLIT + (1 - SPLIT) * share if high else SPLIT * share
    return SHIFT * base / (1 + (SHIFT - 1) * base)


def image_conditioning(first: Tensor) -> Tensor:
    """Mask and image latent [n, 20, f, h, w]; the mask is 1 where the frame is given."""
    mask = torch.zeros_like(first[:, :4])
    mask[:, :, 0] = 1
    return torch.cat([mask, first], 1)


def fastest_block(device: torch.device) -> Callable[..., Tensor]:
    """The block, compiled once for all blocks where there is a GPU."""
    return or_else(torch.compile(block, dynamic=False), block, "block") if device.type == "cuda" else block
