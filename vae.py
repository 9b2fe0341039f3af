"""Wan 2.1's video VAE: diffusers' AutoencoderKLWan on the weights of the official `Wan2.1_VAE.pth`, offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .errors import CheckpointError, require
from .loaders.files import read_tensors

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

Progress = Callable[[int, int], None]

INSTALL = '"lingbot-world[cli]"'
WIDTH_KEY = "decoder.head.0.gamma"
LATENT_CHANNELS = 16


def load_vae(path: str | Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> AutoencoderKLWan:
    """The VAE of a `.pth` (plain state dict) or `.safetensors` file with the official key names.

    Its width is read from the weights. Raises CheckpointError, or DependencyError where diffusers is missing.
    """
    path, weights = Path(path), read_vae(path)
    diffusers = require("diffusers", INSTALL)
    convert = require("diffusers.loaders.single_file_utils", INSTALL).convert_wan_vae_to_diffusers
    with torch.device("meta"):
        vae = diffusers.AutoencoderKLWan(base_dim=vae_width(weights))
    converted = convert(weights)
    _check(path, {name: tuple(tensor.shape) for name, tensor in converted.items()}, vae.state_dict())
    vae.load_state_dict({name: tensor.to(device, dtype) for name, tensor in converted.items()}, assign=True)
    return vae.eval().requires_grad_(False)


def vae_width(weights: Mapping[str, Tensor]) -> int:
    """The VAE's base width: 96 in the package."""
    return weights[WIDTH_KEY].shape[0]


def read_vae(path: str | Path) -> dict[str, Tensor]:
    """The VAE's tensors by official name, mapped where the file allows it. Raises CheckpointError."""
    weights = {name: entry.view() for name, entry in read_tensors(path).items()}
    if WIDTH_KEY not in weights:
        raise CheckpointError(f"{path}: no {WIDTH_KEY}, so not a Wan VAE; use Wan2.1_VAE.pth of the package")
    return weights


def _check(path: Path, found: dict[str, tuple[int, ...]], expected: dict[str, Tensor]) -> None:
    missing, unexpected = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    shapes = [
        f"{name} {found[name]} instead of {tuple(expected[name].shape)}"
        for name in sorted(expected.keys() & found.keys())
        if found[name] != tuple(expected[name].shape)
    ]
    if missing or unexpected or shapes:
        raise CheckpointError(
            f"{path}: not a Wan 2.1 VAE: {len(missing)} keys missing {missing[:3]}, {len(unexpected)} unexpected "
            f"{unexpected[:3]}, {len(shapes)} of another shape {shapes[:3]}; use Wan2.1_VAE.pth of the package"
        )


def encode_first_frame(vae: AutoencoderKLWan, frame: Tensor, frames: int, progress: Progress | None = None) -> Tensor:
    """A video of `frame` float32 [3, H, W] and `frames - 1` zero (grey) frames, as normalised latent.

    Returns float32 [1, 16, (frames - 1) // 4 + 1, H / 8, W / 8] on the VAE's device.
    """
    video = torch.zeros(1, 3, frames, *frame.shape[1:], device=vae.device, dtype=vae.dtype)
    video[0, :, 0] = frame
    chunks = ((frames - 1) // 4 + 1) * _tiles(vae, *frame.shape[1:])
    with torch.no_grad(), _counted(vae.encoder, chunks, progress):
        latent = vae.encode(video).latent_dist.mode().float()
    mean, std = _statistics(vae, latent)
    return (latent - mean) / std


def decode_latent(vae: AutoencoderKLWan, latent: Tensor, progress: Progress | None = None) -> Tensor:
    """Frames uint8 [F, H, W, 3] on the CPU of a normalised latent [1, 16, f, h, w].

    After `vae.enable_tiling()` in overlapping tiles of 256 pixels: less memory, more time, faint seams.
    """
    mean, std = _statistics(vae, latent)
    latent = (latent * std + mean).to(device=vae.device, dtype=vae.dtype)
    chunks = latent.shape[2] * _tiles(vae, latent.shape[-2] * 8, latent.shape[-1] * 8)
    with torch.no_grad(), _counted(vae.decoder, chunks, progress):
        video = vae.decode(latent).sample[0]
    return torch.stack([_to_bytes(frame) for frame in video.unbind(1)])


def _to_bytes(frame: Tensor) -> Tensor:
    pixels = frame.float().clamp(-1, 1).add(1).mul(127.5).round()
    return pixels.to(torch.uint8).permute(1, 2, 0).cpu()


def _statistics(vae: AutoencoderKLWan, like: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.tensor([vae.config.latents_mean, vae.config.latents_std], dtype=torch.float32, device=like.device)
    mean, std = values.view(2, 1, LATENT_CHANNELS, 1, 1, 1)
    return mean, std


def _tiles(vae: AutoencoderKLWan, height: int, width: int) -> int:
    """How many tiles of a frame of that many pixels the VAE works through."""
    if not vae.use_tiling or max(height, width) <= vae.tile_sample_min_width:
        return 1
    return -(-height // vae.tile_sample_stride_height) * -(-width // vae.tile_sample_stride_width)


@contextmanager
def _counted(module: torch.nn.Module, total: int, progress: Progress | None) -> Iterator[None]:
    """Calls `progress` each time that `module`, which takes one latent frame at a time, has run."""
    if progress is None:
        yield
        return
    done = iter(range(1, total + 1))
    hook = module.register_forward_hook(lambda *_: progress(next(done), total))
    try:
        yield
    finally:
        hook.remove()
