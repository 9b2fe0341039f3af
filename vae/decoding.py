"""A latent to frames, at once or part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..options import Progress
from .network import LATENT_CHANNELS, Decoder
from .tiles import SCALE, Blender, Corner, Tiling
from .weights import VAE


def decode_latent(vae: VAE, latent: Tensor, progress: Progress | None = None) -> Tensor:
    """Frames uint8 [F, H, W, 3] on the CPU of a normalised latent [1, 16, f, h, w].

    After `vae.enable_tiling()` in overlapping tiles of 256 pixels: less memory, more time, faint seams.
    """
    return VideoDecoder(vae, *latent.shape[-2:]).decode(latent, progress, last=True)


class VideoDecoder:
    """Decodes a video part by part, to the same bits as all at once. Its state is two frames for each causal layer, and
    can be kept in a file for the video to go on later.

    `height` and `width` are the latent's, `state` is what `state()` gave. With `park` the state lies in host memory
    between calls, which tiles always do. Raises CheckpointError for a state of another VAE, size or tiling.
    """

    def __init__(
        self, vae: VAE, height: int, width: int, *, state: Mapping[str, Tensor] | None = None, park: bool = False
    ) -> None:
        self._vae, self._tiling = vae, Tiling.of(height, width, vae.use_tiling)
        self._rest = torch.device("cpu") if park or len(self._tiling.corners) > 1 else vae.device
        self._past: dict[Corner, dict[str, list[Tensor]]] = {corner: {} for corner in self._tiling.corners}
        if state:
            self._restore(state)

    @torch.no_grad()
    def decode(self, latent: Tensor, progress: Progress | None = None, *, last: bool = False) -> Tensor:
        """The frames uint8 [F, H, W, 3] on the CPU of the next normalised latent frames [1, 16, n, h, w].

        Four of each latent frame, one of a video's first. With `last` no state is kept. After an exception the
        decoder cannot go on; make another from a state.
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

    def state(self) -> dict[str, Tensor]:
        """What the next call needs, copied to host memory: for a file, or for another decoder."""
        return {name: frames.cpu().contiguous() for name, frames in _named(self._past)}

    def _restore(self, state: Mapping[str, Tensor]) -> None:
        expected = self._state_shapes()
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if found != expected:
            wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            raise CheckpointError(
                f"the VAE's state is not one of this video: {wrong[0]} is {found.get(wrong[0], 'missing')}, expected "
                f"{expected.get(wrong[0], 'no such tensor')} ({len(wrong)} of {len(expected)} differ); continue with "
                "the VAE, the size and the tiling of the run that wrote it"
            )
        for name in expected:
            top, left, layer = name.split(".", 2)
            self._past[int(top), int(left)][layer] = list(state[name].to(self._vae.dtype).split(1))
        self._past = {corner: _moved(past, self._rest) for corner, past in self._past.items()}

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Those that decoders of tensors without data leave behind."""
        weights = {name: tensor.to("meta") for name, tensor in self._vae.weights.items()}
        latent = torch.empty(1, LATENT_CHANNELS, self._tiling.height, self._tiling.width, device="meta")
        past = {}
        for corner in self._tiling.corners:
            decoder = Decoder(weights)
            list(decoder.decode(self._tiling.crop(latent, corner).to(self._vae.dtype)))
            past[corner] = decoder.past
        return {name: tuple(frames.shape) for name, frames in _named(past)}


def _named(past: Mapping[Corner, Mapping[str, list[Tensor]]]) -> Iterator[tuple[str, Tensor]]:
    """Both frames [2, C, H, W] of every tile and layer, by names such as `0.24.decoder.conv1`."""
    for (top, left), layers in past.items():
        for layer, frames in layers.items():
            yield f"{top}.{left}.{layer}", torch.cat(frames)


def _moved(past: dict[str, list[Tensor]], device: torch.device) -> dict[str, list[Tensor]]:
    # Other strides would have the convolutions choose other kernels, and round otherwise.
    return {
        layer: [frame.to(device, memory_format=torch.channels_last) for frame in frames]
        for layer, frames in past.items()
    }


def _to_bytes(frame: Tensor) -> Tensor:
    """uint8 [H, W, 3] of [3, H, W] from -1 to 1."""
    return frame.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8).permute(1, 2, 0).cpu()
