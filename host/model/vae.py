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

MOST_CACHED = 4
"""At most this many latents are cached. A float32 latent of 81 frames takes 8.4 MB at 480x832, and 19.4 MB at
720x1280."""


class CachingVAE(comfy.sd.VAE):
    """A VAE that encodes the same images only once. ComfyUI runs WanImageToVideo again when only a prompt changes,
    because prompts are inputs of that node."""

    def __init__(self, **options):
        super().__init__(**options)
        self.cached: OrderedDict[tuple, Tensor] = OrderedDict()

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """Return the latent [1, 16, f, h, w] of a video, an IMAGE [F, H, W, C] with values 0 to 1. The last MOST_CACHED
        latents are cached by the contents of the IMAGE; the result is a copy."""
        pixels = pixel_samples.cpu().contiguous().view(torch.uint8).numpy()
        key = (*pixel_samples.shape, pixel_samples.dtype, hashlib.blake2b(pixels, digest_size=16).digest())
        if key not in self.cached:
            self.cached[key] = super().encode(pixel_samples)
        self.cached.move_to_end(key)
        while len(self.cached) > MOST_CACHED:
            self.cached.popitem(last=False)
        return self.cached[key].clone()

    def decode_tiled(self, samples: Tensor, *tiles, tile_t: int | None = None, **options) -> Tensor:
        """Return the frames [1, F, H, W, 3], values 0 to 1, of a latent [1, 16, f, h, w], decoded in spatial tiles. The
        arguments are ComfyUI's, but tiles always span all frames; see `_whole_time`."""
        return super().decode_tiled(samples, *tiles, tile_t=_whole_time(tile_t, samples.shape[2]), **options)

    def encode_tiled(self, pixel_samples: Tensor, *tiles, tile_t: int | None = None, **options) -> Tensor:
        """Return the latent [1, 16, f, h, w] of a video [F, H, W, C], values 0 to 1, encoded in spatial tiles. The
        arguments are ComfyUI's, but tiles always span all frames; see `_whole_time`."""
        return super().encode_tiled(pixel_samples, *tiles, tile_t=_whole_time(tile_t, len(pixel_samples)), **options)


def _whole_time(tile: int | None, frames: int) -> int | None:
    """Return a tile's length in time: `tile`, or `frames`, the length of the whole video, if `tile` is shorter. In this
    case also show a note. Return None if `tile` is None. The unit is that of the arguments (video or latent frames).

    The VAE would decode a tile shorter than the video as a new video. The tile's first latent frame would decode to
    one frame instead of four, and the brightness would jump by up to 80 %. The VAE works frame by frame, so shorter
    tiles would save no memory.
    """
    if tile is None or tile >= frames:
        return tile
    show_note("The tiles are in space only: in time this VAE goes frame by frame, and a tile would begin a new video.")
    return frames


def open_vae(path: Path) -> CachingVAE:
    """Return the VAE at `path`: a file in any format that ComfyUI reads, a file with diffusers' key names, or a
    diffusers folder. Raises CheckpointError for a broken file, and RuntimeError for a file that is not a VAE."""
    if path.is_dir() or diffusers_names.MARK in read_tensors(path):
        vae = CachingVAE(sd=read_vae(path))
    else:
        weights, metadata = comfy.utils.load_torch_file(str(path), safe_load=True, return_metadata=True)
        vae = CachingVAE(sd=weights, metadata=metadata)
    vae.throw_exception_if_invalid()
    check_values(str(path), vae.first_stage_model.state_dict())
    return vae
