"""Decoding of a walk's latents: each new chunk while it is made, or all saved chunks again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model.host_memory import queued_on
from ...pipeline.state import WorldState
from ...vae import PreviewDecoder, VideoDecoder
from ...vae.decoding import CONTEXT_FRAMES
from ..engine import Engine
from ..store import WalkStore
from .frames import Frames, LatentChunk, Part


def resume_decoder(
    engine: Engine, store: WalkStore, state: WorldState | None, *, exact: bool
) -> VideoDecoder | PreviewDecoder:
    """Return a decoder for the next frames of the walk in `store`, with the last saved latent frames as context.
    `state` is the video that the walk continues, or None; it supplies missing context. Without any context the decoder
    begins a video. `exact` selects fp32 for a VAE decoder."""
    preview, made = engine.new_tiny_decoder, store.latent_frames
    decoder = engine.new_vae_decoder(exact) if preview is None else preview()
    parts = [store.latent(max(0, made - CONTEXT_FRAMES), made)] if made else []
    if state is not None and made < CONTEXT_FRAMES:
        parts.insert(0, state.latent[:, :, made - CONTEXT_FRAMES :])
    for part in parts:
        for latent in part.split(1, dim=2):
            decoder.decode(latent)
    return decoder


def decode_saved(engine: Engine, store: WalkStore, state: WorldState | None, *, exact: bool) -> Iterator[Frames]:
    """Decode the saved walk with the VAE, and yield one Frames per latent frame. `state`: the continued video, first
    decoded as context; None for a new video. Raises OverflowError if a value exceeds fp16, unless `exact` selects
    fp32."""
    decoder, first = engine.new_vae_decoder(exact), 0 if state is None else state.frames
    if state is not None:
        decoder.decode(state.latent[:, :, -CONTEXT_FRAMES:])
    for number in range(store.latent_frames):
        pixels = decoder.decode(store.latent(number, number + 1)).numpy()
        yield Frames(pixels, number // engine.chunk, first, 0, 1, None, 0.0)
        first += len(pixels)


def decode_parts(chunk: LatentChunk, decoder: VideoDecoder | PreviewDecoder) -> Iterable[Part]:
    """Decode a chunk in two parts: its first latent frame, then the others, if any. On a GPU the decoding is
    asynchronous (see `Part`)."""
    latent = chunk.latent
    if decoder.device != latent.device:
        chunk.wait()
        latent = chunk.copy
    parts = (part for part in latent.split((1, latent.shape[2] - 1), dim=2) if part.shape[2])
    queue = ((decoder.decode(part, non_blocking=True), queued_on(decoder.device)) for part in parts)
    return list(queue) if decoder.device.type == "cuda" else queue
