"""Decoding by several processes: each decodes a stripe of every frame, and the first one joins the stripes."""

import logging
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ...options import CELL, Progress
from ...vae import VAE, Stripe, VideoDecoder, load_vae
from ..plan import SamplingPlan
from ..stages import decode
from .processes import Processes
from .profile import release

log = logging.getLogger(__name__)
FRAMES_AT_ONCE = 48
"""The maximum number of frames in one transfer to the first process."""


def decode_together(plan: SamplingPlan, latent: Tensor, progress: Progress, processes: Processes) -> Tensor | None:
    """Decode `latent`, [1, 16, f, h, w], in all processes. Return the frames, uint8 [F, H, W, 3], in the first process
    and None in the others."""
    if processes.size > 1 and not plan.options.vae_tiling:
        stripe = None
        with suppress(torch.OutOfMemoryError):
            stripe = stripe_decoder(load_vae(plan.vae, device=plan.device), plan.cells, processes).decode(
                latent, progress, last=True
            )
        if processes.minimum(stripe is not None):
            assert stripe is not None
            return join_stripes(stripe, plan.cells, processes)
        del stripe
        log.warning("A stripe of the video did not fit into a GPU's memory: again, tile by tile, by one process.")
        release(plan.device)
        plan = replace(plan, options=replace(plan.options, vae_tiling=True))
    return decode(plan, latent, progress) if processes.first else None


def stripe_decoder(vae: VAE, size: tuple[int, int], processes: Processes, *, park: bool = False) -> VideoDecoder:
    """Return a decoder for this process's stripe of each frame. `size`: the height and width of the latent. `park`:
    whether the decoder's state is moved to host memory between chunks."""
    stripe = Stripe.of(*size, processes.rank, processes.size) if processes.size > 1 else None
    return VideoDecoder(vae, *size, park=park, stripe=stripe)


def join_stripes(stripe: Tensor, size: tuple[int, int], processes: Processes) -> Tensor | None:
    """Gather the stripes of all processes. Return the whole frames, uint8 [F, H, W, 3], in the first process and None
    in others. `stripe`: the stripe of this process, uint8 [F, h, w, 3]. `size`: the latent's height and width."""
    if processes.size == 1:
        return stripe
    places = [Stripe.of(*size, index, processes.size) for index in range(processes.size)]
    rows, columns = (CELL * max(sides) for sides in zip(*(place.size(*size) for place in places), strict=True))
    to_the_largest = (0, 0, 0, columns - stripe.shape[2], 0, rows - stripe.shape[1])
    video = torch.empty(len(stripe), *(CELL * side for side in size), 3, dtype=torch.uint8) if processes.first else None
    for first in range(0, len(stripe), FRAMES_AT_ONCE):
        collected = processes.collect(F.pad(stripe[first : first + FRAMES_AT_ONCE], to_the_largest))
        for place, part in zip(places, collected or (), strict=False):
            assert video is not None
            room = place.within(video[first : first + FRAMES_AT_ONCE])
            room.copy_(part[:, : room.shape[1], : room.shape[2]])
    return video
