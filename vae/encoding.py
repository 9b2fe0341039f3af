"""Encoding of a start image, followed by grey frames, to the latent that conditions a video."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count, repeat

import torch
from torch import Tensor

from ..options import CELL, Progress
from .network import LATENT_CHANNELS, Encoder
from .splitting import Blender, Tiling
from .weights import VAE

SETTLED = 30
"""The number of latent frames to encode for an image followed by grey frames. All later latent frames equal the last of
these."""


def encode_first_frame(vae: VAE, frame: Tensor, frames: int, progress: Progress | None = None) -> Tensor:
    """Encode a video of `frames` frames: an image, float32 [3, H, W] from -1 to 1, then grey. Return the normalised
    latent, float32 [1, 16, f, H / 8, W / 8]."""
    height, width = (size // CELL for size in frame.shape[1:])
    length, tiling = (frames - 1) // 4 + 1, Tiling.of(height, width, vae.use_tiling)
    latent = torch.empty(1, LATENT_CHANNELS, length, height, width, device=vae.device)
    blender, done = Blender(tiling), count(1)
    for corner in tiling.corners:
        for index, tile in zip(range(length), _latents(vae, tiling.crop(frame, corner, CELL)), strict=False):
            (rows, columns), own = blender.add(index, corner, tile)
            latent[:, :, index, rows, columns] = own
            if progress is not None:
                progress(next(done), length * len(tiling.corners))
    return latent


@torch.no_grad()
def _latents(vae: VAE, frame: Tensor) -> Iterator[Tensor]:
    """Yield normalised latent frames [1, 16, h, w] without end. They encode a video that starts with an image, `frame`
    [3, H, W], and has grey frames after it."""
    frame = frame[None].to(vae.device, vae.dtype).contiguous(memory_format=torch.channels_last)
    encoder = Encoder(vae.weights)
    for image in chain([frame], repeat(torch.zeros_like(frame))):
        latent = encoder.encode(image)
        if latent is not None:
            yield vae.normalized(latent)
