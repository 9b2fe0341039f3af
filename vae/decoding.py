"""Decoding of a latent to video frames, in one call or in parts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import count

import torch
from torch import Tensor

from ..errors import InputError
from ..model.host_memory import upload, zero_and_pin
from ..options import CELL, Progress
from .network import Decoder
from .pooled import new_decoder
from .splitting import Blender, Corner, Stripe, Tiling
from .weights import VAE

State = dict[str, list[Tensor]]
"""The decoder's state: the last two input frames of each temporal layer, by the layer's name."""

NOT_FINITE = (
    "The latent holds numbers that are not finite (NaN, infinity), so the video would be black. Possible causes: a "
    "size or an aspect ratio that the model was not trained for, too great a strength of a LoRA, a damaged file of "
    "weights."
)
CONTEXT_FRAMES = 42
"""The number of latent frames, up to the current one, on which the decoder's state depends."""


def decode_latent(vae: VAE, latent: Tensor, progress: Progress | None = None) -> Tensor:
    """Decode a normalised latent [1, 16, f, h, w]. Return the video, uint8 [F, H, W, 3], on the CPU. Raise InputError,
    or OverflowError for an fp16 VAE, if a frame is not finite."""
    return VideoDecoder(vae, *latent.shape[-2:]).decode(latent, progress, last=True)


class VideoDecoder:
    """A decoder of one video in parts. The frames equal bit for bit those of decoding the whole video at once.

    park: whether to keep the state in host memory between parts. A tiled decoder always does.
    stripe: the part of each frame to decode; None for full frames.
    """

    def __init__(self, vae: VAE, height: int, width: int, *, park: bool = False, stripe: Stripe | None = None) -> None:
        self._vae, self._tiling = vae, Tiling.of(height, width, vae.use_tiling and stripe is None)
        self._stripe, self._size = stripe, (height, width) if stripe is None else stripe.size(height, width)
        self._park = park or len(self._tiling.corners) > 1
        with self._on_its_gpu():
            self._decoders = {corner: self._new() for corner in self._tiling.corners}
        self._parked: dict[Corner, State] = {corner: {} for corner in self._tiling.corners}
        self._finite: list[Tensor] = []

    @property
    def device(self) -> torch.device:
        return self._vae.device

    def _on_its_gpu(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def anew(self, height: int, width: int) -> VideoDecoder:
        """Return a decoder for another video, with frames of `height` x `width` latent pixels and this decoder's VAE.
        The new decoder decodes full frames, even if this one decodes a stripe. If this one parks its state in host
        memory, so does the new one."""
        return VideoDecoder(self._vae, height, width, park=self._park)

    @torch.no_grad()
    def decode(
        self, latent: Tensor, progress: Progress | None = None, *, last: bool = False, non_blocking: bool = False
    ) -> Tensor:
        """Decode the next latent frames [1, 16, n, h, w]. Return CPU frames, uint8 [F, H, W, 3]. `last` frees the
        state. With `non_blocking`, return before the GPU has finished: wait for the GPU and call `check` before reading
        the frames."""
        with self._on_its_gpu():
            video = self._decode(latent, progress, last, non_blocking)
        if not non_blocking:
            self.check()
        return video

    def _decode(self, latent: Tensor, progress: Progress | None, last: bool, non_blocking: bool) -> Tensor:
        vae, tiling = self._vae, self._tiling
        latents = [vae.denormalized(each) for each in latent.unbind(2)]
        length = 4 * len(latents) - (0 if self._decoders[0, 0].past else 3)
        queued = non_blocking and vae.device.type == "cuda"
        pinned = queued and len(tiling.corners) == 1
        video = torch.empty(length, *(CELL * side for side in self._size), 3, dtype=torch.uint8, pin_memory=pinned)
        blender, done = Blender(tiling, CELL), count(1)
        finite = torch.ones((), dtype=torch.bool, device=vae.device)
        for corner in tiling.corners:
            decoder = self._decoders[corner]
            decoder.past = _upload_state(decoder.past, vae.device)
            index = count()
            for each in latents:
                cut = tiling.crop(each, corner).contiguous(memory_format=torch.channels_last)
                for frame, number in zip(decoder.decode(cut), index, strict=False):
                    finite &= frame.isfinite().all()
                    (rows, columns), own = blender.add(number, corner, frame[0])
                    video[number, rows, columns].copy_(_to_bytes(own), non_blocking=pinned)
                if progress is not None:
                    progress(next(done), len(latents) * len(tiling.corners))
            if last:
                self._decoders[corner] = self._new()
            else:
                decoder.past = self._park_state(corner, decoder.past)
        self._finite.append(finite.to("cpu", non_blocking=queued))
        return video

    def _new(self) -> Decoder:
        return new_decoder(self._vae, self._stripe, recorded=not self._park)

    def check(self) -> None:
        """Raise InputError, or OverflowError for an fp16 VAE, if a frame decoded since the last check is not finite."""
        finite, self._finite = all(self._finite), []
        if not finite and self._vae.dtype == torch.float16:
            raise OverflowError("a number in the VAE is too large for fp16")
        if not finite:
            raise InputError(NOT_FINITE)

    def _park_state(self, corner: Corner, past: State) -> State:
        """Return the state to keep for the tile at `corner`: a copy in host memory if this decoder parks states, else
        `past` itself."""
        if not self._park:
            return past
        parked = self._parked[corner]
        new = {
            layer: [torch.empty_like(frame, device="cpu") for frame in frames]
            for layer, frames in past.items()
            if len(parked.get(layer, ())) != len(frames)
        }
        if new and self._vae.device.type == "cuda":
            zero_and_pin(self, [room for rooms in new.values() for room in rooms], self._vae.device)
        parked |= new
        for layer, frames in past.items():
            for room, frame in zip(parked[layer], frames, strict=True):
                room.copy_(frame, non_blocking=self._vae.device.type == "cuda")
        return parked


def _upload_state(past: State, device: torch.device) -> State:
    # With other strides the convolutions would choose other kernels, and round differently.
    return {
        layer: [upload(frame, device).contiguous(memory_format=torch.channels_last) for frame in frames]
        for layer, frames in past.items()
    }


def _to_bytes(frame: Tensor) -> Tensor:
    return frame.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8).permute(1, 2, 0).contiguous()
