"""A latent to frames, at once or part by part."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from ..options import Progress
from .network import Decoder
from .tiles import SCALE, Blender, Corner, Tiling
from .weights import VAE


def decode_latent(vae: VAE, latent: Tensor, progress: Progress | None = None) -> Tensor:
    """Frames uint8 [F, H, W, 3] on the CPU of a normalised latent [1, 16, f, h, w].

    After `vae.enable_tiling()` in overlapping tiles of 256 pixels: less memory, more time, faint seams.
    """
    return VideoDecoder(vae, *latent.shape[-2:]).decode(latent, progress, last=True)


class VideoDecoder:
    """Decodes a video part by part, to the same bits as all at once. Between calls it keeps two frames of each causal
    layer: on the VAE's device, or with `park`, and always with tiles, in host memory.

    `height` and `width` are the latent's. After an exception it cannot be used any more.
    """

    def __init__(self, vae: VAE, height: int, width: int, *, park: bool = False) -> None:
        self._vae, self._tiling = vae, Tiling.of(height, width, vae.use_tiling)
        self._rest = torch.device("cpu") if park or len(self._tiling.corners) > 1 else vae.device
        self._past: dict[Corner, dict[str, list[Tensor]]] = {corner: {} for corner in self._tiling.corners}

    @torch.no_grad()
    def decode(self, latent: Tensor, progress: Progress | None = None, *, last: bool = False) -> Tensor:
        """The frames uint8 [F, H, W, 3] on the CPU of the next normalised latent frames [1, 16, n, h, w].

        A latent frame gives four frames, a video's first one gives one. After the `last` call nothing is kept.
        """
        vae, tiling = self._vae, self._tiling
        latents = [vae.denormalized(each) for each in latent.unbind(2)]
        length = 4 * len(latents) - (0 if self._past[0, 0] else 3)
        video = torch.empty(length, SCALE * tiling.height, SCALE * tiling.width, 3, dtype=torch.uint8)
        blender, done = Blender(tiling, SCALE), count(1)
        for corner in tiling.corners:
            decoder, index = Decoder(vae.weights, _moved(self._past.pop(corner), vae.device)), count()
            for each in latents:
                cut = tiling.crop(each, corner).contiguous(memory_format=torch.channels_last)
                for frame, number in zip(decoder.decode(cut), index, strict=False):
                    (rows, columns), own = blender.add(number, corner, frame[0])
                    video[number, rows, columns] = _to_bytes(own)
                if progress is not None:
                    progress(next(done), len(latents) * len(tiling.corners))
            self._past[corner] = {} if last else _moved(decoder.past, self._rest)
        return video


def _moved(past: dict[str, list[Tensor]], device: torch.device) -> dict[str, list[Tensor]]:
    # With other strides torch would choose other convolution kernels, which round differently.
    return {
        layer: [frame.to(device, memory_format=torch.channels_last) for frame in frames]
        for layer, frames in past.items()
    }


def _to_bytes(frame: Tensor) -> Tensor:
    """uint8 [H, W, 3] of [3, H, W] from -1 to 1."""
    return frame.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8).permute(1, 2, 0).cpu()
