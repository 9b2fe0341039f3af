"""ComfyUI's VAE with a cache of the latents that it encoded last."""

import hashlib
from collections import OrderedDict
from pathlib import Path

import comfy.sd
import comfy.utils
import torch
from torch import Tensor

from ...vae import check_values, diffusers_names, read_vae
from ...weights.files import read_tensors
from ..prompt.notice import show_note

MAX_CACHED = 4
"""The maximum number of cached latents. The latent of an 81-frame video at 720x1280 takes 19.4 MB."""


class CachingVAE(comfy.sd.VAE):
    """A VAE that caches the latents of encoded images, because a changed prompt runs WanImageToVideo again."""

    def __init__(self, **options):
        super().__init__(**options)
        self.cached: OrderedDict[tuple, Tensor] = OrderedDict()

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """Return the latent [1, 16, f, h, w] of a video [F, H, W, C]. The latents of recent videos are cached. The
        returned tensor is a copy, so the caller may change it."""
        pixels = pixel_samples.cpu().contiguous().view(torch.uint8).numpy()
        key = (*pixel_samples.shape, pixel_samples.dtype, hashlib.blake2b(pixels, digest_size=16).digest())
        if key not in self.cached:
            self.cached[key] = super().encode(pixel_samples)
        self.cached.move_to_end(key)
        while len(self.cached) > MAX_CACHED:
            self.cached.popitem(last=False)
        return self.cached[key].clone()

    def decode_tiled(self, samples: Tensor, *tiles, tile_t: int | None = None, **options) -> Tensor:
        """Return a latent's frames [1, F, H, W, 3], values 0 to 1. `tile_t` is ignored: tiles span all frames."""
        return super().decode_tiled(samples, *tiles, tile_t=_span_frames(tile_t, samples.shape[2]), **options)

    def encode_tiled(self, pixel_samples: Tensor, *tiles, tile_t: int | None = None, **options) -> Tensor:
        """Return the latent [1, 16, f, h, w] of a video [F, H, W, C], encoded in spatial `tiles` (ComfyUI's tile_x,
        tile_y, overlap). The tiles' length in frames, `tile_t`, is ignored: tiles span all frames."""
        return super().encode_tiled(pixel_samples, *tiles, tile_t=_span_frames(tile_t, len(pixel_samples)), **options)


def _span_frames(tile: int | None, frames: int) -> int | None:
    if tile is None or tile >= frames:
        return tile
    show_note("The tiles are in space only: in time this VAE goes frame by frame, and a tile would begin a new video.")
    return frames


def open_vae(path: Path) -> CachingVAE:
    """Return the VAE of a file or diffusers folder. Raise CheckpointError or RuntimeError for an unusable file."""
    if path.is_dir() or diffusers_names.MARK in read_tensors(path):
        vae = CachingVAE(sd=read_vae(path))
    else:
        weights, metadata = comfy.utils.load_torch_file(str(path), safe_load=True, return_metadata=True)
        vae = CachingVAE(sd=weights, metadata=metadata)
    vae.throw_exception_if_invalid()
    check_values(str(path), vae.first_stage_model.state_dict())
    return vae
