"""The run of a causal model: sampling, decoding and writing chunk by chunk."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..options import Progress
from ..pipeline.delivery import Delivery
from ..pipeline.memory import MARGIN, estimate_decoding, free_memory
from ..pipeline.state import prompts_of
from ..vae import VideoDecoder, load_vae
from ..vae.decoding import CONTEXT_FRAMES
from .files.video import FrameWriter
from .preparation import decoding_processes, prepare
from .process.decoding import join_stripes
from .process.interrupts import DelayInterrupts
from .process.processes import Processes
from .process.profile import StageRecorder
from .rollout_plan import RolloutPlan
from .stages import DECODE_AGAIN, RunContext

log = logging.getLogger(__name__)
SECONDS_BETWEEN_STATES = 50
"""The minimum number of seconds between two saves of the state."""


def run_causal(
    plan: RolloutPlan, prompts: Callable[[], list[Tensor]], noise: Tensor, generator: torch.Generator, run: RunContext
) -> Path:
    """Make a causal model's video and return its path. `prompts()` returns embeddings, [1, L, D] each. `noise`: [1, 16,
    f, h, w]. `generator`: draws the noise between steps."""
    spec, processes = plan.spec, run.processes
    memory, contexts, image, decoder, model = prepare(plan, prompts, run)
    image = processes.share(image, 0)
    negative = contexts[1] if spec.guided else None
    encoded = [contexts[0], *contexts[1 + spec.guided :]]
    spoken = [(first, text, context) for (first, text), context in zip(plan.prompts_by_chunk, encoded, strict=True)]
    later = {first: context for first, _, context in spoken}

    def renoise(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    frames = _ChunkDecoder(plan, decoder, decoding_processes(memory, processes), run.stages)
    del decoder  # `frames` may replace the decoder
    latents = spec.loop.run(
        model,
        spec.chunks(image, noise, contexts[0], negative, later=later),
        renoise,
        device=plan.device,
        memory=memory.world,
        sequence_parallel=run.together.sequence,
        callback=frames.delivery.forward_done,
    )
    if not processes.first:
        frames.make(latents, lambda _frames: None)
        return plan.target.path

    def save() -> None:
        if plan.options.save_state is not None and (written := frames.delivery.latents[: frames.written()]):
            with DelayInterrupts(first=True):
                prompts_made = prompts_of(spoken, None if negative is None else negative.cpu())
                state = spec.state_after(torch.cat(written, dim=2), *prompts_made)
                threads = torch.get_num_threads() if plan.device.type == "cpu" else 0
                replace(state, threads=threads).save(plan.options.save_state)

    try:
        _write(frames, latents, plan, save)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(*(["the chunks that were done stay"] if frames.delivery.latents else [])) from error
    finally:
        save()
    return plan.target.path


def _write(made: "_ChunkDecoder", latents: Iterator[Tensor], plan: RolloutPlan, save: Callable[[], None]) -> None:
    """Write the video chunk by chunk, and call `save` regularly to save the state. The first Ctrl-C ends the run.
    Unless the output is a pipe, later ones are delayed until the video file is complete."""
    saved = time.monotonic()
    further: AbstractContextManager = nullcontext() if plan.target.is_pipe else DelayInterrupts()
    with further, FrameWriter(plan.target, plan.options.fps, keep_partial=True, first=plan.frames_before) as writer:

        def write(frames: Tensor) -> None:
            nonlocal saved
            writer.write(frames.numpy())
            if time.monotonic() - saved > SECONDS_BETWEEN_STATES:
                try:
                    save()
                except InputError as reason:
                    log.warning("%s. The run goes on.", reason)
                saved = time.monotonic()
            made.progress(writer.frames, plan.geometry.frames)

        made.written = lambda: writer.parts
        made.make(latents, write)


class _ChunkDecoder:
    """The decoder of a causal run's chunks. The function `written` returns the number of chunks in the video so far.
    `_write` sets this function."""

    progress: Progress

    def __init__(
        self, plan: RolloutPlan, decoder: VideoDecoder | None, decoding: Processes, stages: StageRecorder
    ) -> None:
        self._plan, self._decoder, self._decoding, self._stages = plan, decoder, decoding, stages
        self._before: list[Tensor] = []
        self._write: Callable[[Tensor], None] = lambda _frames: None
        self.written: Callable[[], int] = lambda: 0
        self.delivery = Delivery(self._deliver)

    def make(self, latents: Iterator[Tensor], write: Callable[[Tensor], None]) -> None:
        """Decode all chunks. In the first process, call `write` with each chunk's frames, uint8 [F, H, W, 3]."""
        self._write = write
        self._replay(latents)
        self.progress = self._stages.begin("chunks", "frame", keep=True)
        try:
            for latent in latents:
                frames = None if self._decoder is None else self._decoder.decode(latent, non_blocking=True)
                self.delivery.add(latent, frames, *([] if self._decoder is None else [self._decoder.device]))
            self.delivery.finish()
        except BaseException:
            if self._decoding.size == 1:  # several processes could no longer join their stripes
                _finish_or_log(self.delivery)
            raise

    def _replay(self, latents: Iterator[Tensor]) -> None:
        """Consume the chunks of a continued state, which `latents` yields first. This fills the model's KV cache and
        the decoder's state."""
        state = self._plan.spec.state
        if state is None:
            return
        progress = self._stages.begin("replay", "chunk", keep=True)
        for done in range(state.chunks):
            next(latents)
            progress(done + 1, state.chunks)
        self._before = list(state.latent[:, :, -CONTEXT_FRAMES:].split(state.chunk, dim=2))
        try:
            self._restore_decoder(self._before)
            return
        except OverflowError as error:
            reason = str(error)  # only the text, because the error holds the decoder
        self._decode_in_fp32(reason)

    def _deliver(self, latent: Tensor, frames: Tensor | None) -> None:
        own = self._checked(latent, frames)
        joined = None if own is None else join_stripes(own, self._plan.cells, self._decoding)
        if joined is not None:
            self._write(joined)

    def _checked(self, latent: Tensor, frames: Tensor | None) -> Tensor | None:
        """Return `frames`, or the frames decoded again in fp32 if a value overflowed fp16. Return None in a process
        that does not decode."""
        if self._decoder is None:
            return None
        try:
            self._decoder.check()
            return frames
        except OverflowError as error:
            reason = str(error)  # only the text, because the error holds the decoder
        self._decode_in_fp32(reason)
        return self._decoder.decode(latent)

    def _decode_in_fp32(self, reason: str) -> None:
        """Log `reason`, the message of the fp16 overflow. Replace the decoder by an fp32 decoder, and decode the last
        chunks again to restore its state."""
        log.warning(DECODE_AGAIN, reason)
        plan, self._decoder = self._plan, None
        vae = load_vae(plan.vae, device=plan.decoding_device)
        needed = estimate_decoding(vae.width, plan.chunk_geometry).work + MARGIN
        vae.use_tiling = plan.options.vae_tiling or needed > free_memory(vae.device)
        self._decoder = VideoDecoder(vae, *plan.cells, park=True)
        self._restore_decoder([*self._before, *self.delivery.latents[:-1]][-CONTEXT_FRAMES // plan.spec.chunk :])

    def _restore_decoder(self, latents: list[Tensor]) -> None:
        if self._decoder is not None:
            for latent in latents:
                self._decoder.decode(latent)


def _finish_or_log(delivery: Delivery) -> None:
    try:
        delivery.finish()
    except Exception as reason:
        log.warning("The last chunk that was made could not be written: %s", reason)
