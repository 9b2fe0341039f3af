"""The VAE as ComfyUI has it, with a memory for the images that it encoded last."""

import hashlib
from collections import OrderedDict
from pathlib import Path

import comfy.sd
import comfy.utils
import torch
from torch import Tensor

from ...vae import diffusers_names, read_vae
from ...weights.files import read_tensors

KEPT = 4
"""Latents that are kept at most: of 480x832 with 81 frames 9 MB each, of 720x1280 with 81 frames 19 MB each."""


class RememberingVAE(comfy.sd.VAE):
    """Encodes the same images once. ComfyUI runs WanImageToVideo again when the camera or a prompt changes, because
    both are wired into it; its start image is mostly the same then."""

    def __init__(self, **options):
        super().__init__(**options)
        self.kept: OrderedDict[tuple, Tensor] = OrderedDict()

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """The latent of images [B, H, W, C], 0..1, as ComfyUI's VAE gives it."""
        pixels = pixel_samples.cpu().contiguous().view(torch.uint8).numpy()
        key = (*pixel_samples.shape, pixel_samples.dtype, hashlib.blake2b(pixels, digest_size=16).digest())
        if key not in self.kept:
            self.kept[key] = super().encode(pixel_samples)
        self.kept.move_to_end(key)
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return self.kept[key].clone()


def open_vae(path: Path) -> RememberingVAE:
    """A VAE of a file as ComfyUI reads it, or of diffusers' file or folder, whose names ComfyUI does not know. Raises
    CheckpointError, and RuntimeError for what is no VAE."""
    if path.is_dir() or diffusers_names.MARK in read_tensors(path):
        vae = RememberingVAE(sd=read_vae(path))
    else:
        weights, metadata = comfy.utils.load_torch_file(str(path), safe_load=True, return_metadata=True)
        vae = RememberingVAE(sd=weights, metadata=metadata)
    vae.throw_exception_if_invalid()
    return vae
