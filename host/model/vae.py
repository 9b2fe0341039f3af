"""ComfyUI's VAE with a cache of the last latents that it has encoded."""

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

KEPT = 4
"""The most latents in the cache: 9 MB each at 480x832 with 81 frames, 19 MB each at 720x1280 with 81 frames."""


class RememberingVAE(comfy.sd.VAE):
    """A VAE that encodes the same images only once.

    ComfyUI runs WanImageToVideo again when a prompt changes, because prompts are inputs of that node. The start image
    is usually unchanged then."""

    def __init__(self, **options):
        super().__init__(**options)
        self.kept: OrderedDict[tuple, Tensor] = OrderedDict()

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """Return the latent of an IMAGE [B, H, W, C], 0..1, as ComfyUI's VAE does."""
        pixels = pixel_samples.cpu().contiguous().view(torch.uint8).numpy()
        key = (*pixel_samples.shape, pixel_samples.dtype, hashlib.blake2b(pixels, digest_size=16).digest())
        if key not in self.kept:
            self.kept[key] = super().encode(pixel_samples)
        self.kept.move_to_end(key)
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return self.kept[key].clone()

    def decode_tiled(self, samples: Tensor, *tiles, tile_t: int | None = None, **options) -> Tensor:
        """Return the frames of a latent [1, 16, f, h, w], decoded in tiles of space only. See `_whole_time`."""
        return super().decode_tiled(samples, *tiles, tile_t=_whole_time(tile_t, samples.shape[2]), **options)

    def encode_tiled(self, pixel_samples: Tensor, *tiles, tile_t: int | None = None, **options) -> Tensor:
        """Return the latent of images [F, H, W, C], encoded in tiles of space only. See `_whole_time`."""
        return super().encode_tiled(pixel_samples, *tiles, tile_t=_whole_time(tile_t, len(pixel_samples)), **options)


def _whole_time(tile: int | None, frames: int) -> int | None:
    """Return the length of tiles in time, at least `frames`. A shorter tile would be a video of its own for this VAE,
    whose first latent frame is one image and not four: jumps of up to 0.8 of full brightness. The VAE goes frame by
    frame anyway, so shorter tiles save no memory."""
    if tile is None or tile >= frames:
        return tile
    show_note("The tiles are in space only: in time this VAE goes frame by frame, and a tile would begin a new video.")
    return frames


def open_vae(path: Path) -> RememberingVAE:
    """Return the VAE of a file that ComfyUI reads, or of a file or folder with diffusers' key names, which ComfyUI does
    not know. Raises CheckpointError, and RuntimeError for a file that is not a VAE."""
    if path.is_dir() or diffusers_names.MARK in read_tensors(path):
        vae = RememberingVAE(sd=read_vae(path))
    else:
        weights, metadata = comfy.utils.load_torch_file(str(path), safe_load=True, return_metadata=True)
        vae = RememberingVAE(sd=weights, metadata=metadata)
    vae.throw_exception_if_invalid()
    check_values(str(path), vae.first_stage_model.state_dict())
    return vae
