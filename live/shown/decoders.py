"""Decoding of a walk's latents: of each new chunk, and of all saved chunks again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model.host_memory import queued_on
from ...pipeline.state import WorldState
from ...vae import PreviewDecoder, VideoDecoder
from ...vae.decoding import REACH
from ..engine import Engine
from ..kept import Kept
from .frames import Frames, Made, Part


def decoder_of_last(
    engine: Engine, kept: Kept, state: WorldState | None, *, exact: bool
) -> VideoDecoder | PreviewDecoder:
    """Return a decoder in the state after a walk's last latent frame: it has decoded the last REACH latent frames, also
    of the continued `state`. `exact`: in fp32."""
    preview, made = engine.new_preview, kept.latent_frames
    decoder = engine.new_decoder(exact) if preview is None else preview()
    parts = [kept.latent(max(0, made - REACH), made)] if made else []
    if state is not None and made < REACH:
        parts.insert(0, state.latent[:, :, made - REACH :])
    for part in parts:
        for latent in part.split(1, dim=2):
            decoder.decode(latent)
    return decoder


def decode_kept(engine: Engine, kept: Kept, state: WorldState | None, *, exact: bool) -> Iterator[Frames]:
    """Decode all saved latents of a walk with the VAE, and yield the frames of each latent frame. Raises OverflowError
    for values that are too large for fp16, unless `exact`."""
    decoder, first = engine.new_decoder(exact), 0 if state is None else state.frames
    if state is not None:
        decoder.decode(state.latent[:, :, -REACH:])
    for number in range(kept.latent_frames):
        pixels = decoder.decode(kept.latent(number, number + 1)).numpy()
        yield Frames(pixels, number // engine.chunk, first, 0, 1, None, 0.0)
        first += len(pixels)


def decode_parts(made: Made, decoder: VideoDecoder | PreviewDecoder) -> Iterable[Part]:
    """Return the frames of a chunk's first latent frame, then of its others. On a GPU all are queued now; on a CPU each
    is decoded on request. A GPU other than the model's gets the latent through host memory, because a direct copy would
    wait for all work that is queued on the model's GPU."""
    latent = made.latent
    if decoder.device != latent.device:
        made.wait()
        latent = made.copy
    parts = (part for part in latent.split((1, latent.shape[2] - 1), dim=2) if part.shape[2])
    queue = ((decoder.decode(part, later=True), queued_on(decoder.device)) for part in parts)
    return list(queue) if decoder.device.type == "cuda" else queue
