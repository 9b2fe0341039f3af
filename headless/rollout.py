"""One run of a causal model: every chunk is sampled, decoded and written as it comes.

Python queues a chunk's kernels faster than a GPU runs them. So it waits for a chunk's frames only when the next chunk's
first forward is queued behind them: the GPU never waits for Python to write frames or to compute a camera."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..model.host_memory import queued_on
from ..options import Progress
from ..pipeline.memory import MARGIN, estimate_vae, free_memory
from ..pipeline.state import Prompt
from ..vae import VideoDecoder, load_vae
from ..vae.decoding import REACH
from .decoding import join_stripes
from .files.video import FrameWriter
from .interrupts import LaterInterruptsWait
from .preparation import decoding_processes, prepare
from .processes import Processes
from .profile import StageRecorder
from .rollout_plan import RolloutPlan
from .stages import AGAIN, RunContext

log = logging.getLogger(__name__)

SECONDS_BETWEEN_STATES = 50
"""A run that is killed loses a minute of its work at most, as long as a chunk takes ten seconds."""


def run_rollout(
    plan: RolloutPlan, prompts: Callable[[], list[Tensor]], noise: Tensor, generator: torch.Generator, run: RunContext
) -> Path:
    """Makes the video that `plan` describes for the embeddings [1, L, D] that `prompts()` gives, from `noise`
    [1, 16, f, h, w] and what the generator draws after it. Returns the video's path. Several processes compute each
    forward together, and decode a stripe of the frames each, unless in tiles; the first one encodes the image and
    writes.

    Whatever ends the run early, the video of the chunks that are done stays, and so does their state."""
    spec, processes = plan.spec, run.processes
    memory, contexts, image, decoder, model = prepare(plan, prompts, run)
    image = processes.share(image, 0)

    def renoise(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    delivery = _Delivery(plan, decoder, decoding_processes(memory, processes), run.stages)
    del decoder  # the delivery may take another
    latents = spec.loop.run(
        model,
        spec.chunks(image, noise, *contexts),
        renoise,
        device=plan.device,
        memory=memory.world,
        sequence_parallel=run.together.sequence,
        callback=delivery.forward_done,
    )
    if not processes.first:
        delivery.make(latents, lambda _frames: None)
        return plan.target.path

    def save() -> None:
        if plan.options.save_state is not None and (written := delivery.latents[: delivery.written()]):
            with LaterInterruptsWait(hold=True):
                prompt = Prompt(plan.options.prompt, contexts[0], 0, *(context.cpu() for context in contexts[1:]))
                spec.state_after(torch.cat(written, dim=2), prompt).save(plan.options.save_state)

    try:
        _write(delivery, latents, plan, save)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(*(["the chunks that were done stay"] if delivery.latents else [])) from error
    finally:
        save()
    return plan.target.path


def _write(delivery: "_Delivery", latents: Iterator[Tensor], plan: RolloutPlan, save: Callable[[], None]) -> None:
    """The chunks of the first process into the video, and every minute their state, should the run be killed. What ends
    the run early is followed by the last chunk and the end of a file, which no further interrupt may break off; whoever
    reads a pipe may be waited for in vain."""
    saved = time.monotonic()
    further: AbstractContextManager = nullcontext() if plan.target.is_pipe else LaterInterruptsWait()
    with (
        further,
        FrameWriter(plan.target, plan.options.fps, keep_partial=True, first=plan.frames_before) as writer,
    ):

        def write(frames: Tensor) -> None:
            nonlocal saved
            writer.write(frames.numpy())
            if time.monotonic() - saved > SECONDS_BETWEEN_STATES:
                try:
                    save()
                except InputError as reason:
                    log.warning("%s. The run goes on.", reason)
                saved = time.monotonic()
            delivery.progress(writer.frames, plan.geometry.frames)

        delivery.written = lambda: writer.parts
        delivery.make(latents, write)


class _Queued(NamedTuple):
    """A chunk in host memory: its latent and its frames, or this process's stripe of them. If a GPU is still at work on
    them, they are there after `wait()`."""

    latent: Tensor
    frames: Tensor | None
    wait: Callable[[], object] | None


class _Delivery:
    """The way of each chunk from its latent to its frames. `decoding`: the processes that divide the frames. `written`
    tells how many chunks are in the video: a state of more would leave a gap before the next one."""

    progress: Progress

    def __init__(
        self, plan: RolloutPlan, decoder: VideoDecoder | None, decoding: Processes, stages: StageRecorder
    ) -> None:
        self._plan, self._decoder, self._decoding, self._stages = plan, decoder, decoding, stages
        self._before: list[Tensor] = []
        self._queued: _Queued | None = None
        self._deliver: Callable[[Tensor], None] = lambda _frames: None
        self.written: Callable[[], int] = lambda: 0
        self.latents: list[Tensor] = []

    def make(self, latents: Iterator[Tensor], deliver: Callable[[Tensor], None]) -> None:
        """Take the chunks as the loop makes them. `deliver(frames)` gets the frames uint8 [F, H, W, 3] of each, in the
        first process. A chunk that was queued when the run is interrupted is delivered too."""
        self._deliver = deliver
        self._replay(latents)
        self.progress = self._stages.begin("chunks", "frame", keep=True)
        try:
            for latent in latents:
                self._queued = self._decoded(latent)
                if self._queued.wait is None:
                    self.finish()
            self.finish()
        except BaseException:
            if self._decoding.size == 1:  # several processes could not join their stripes any more
                _but_log(self.finish)
            raise

    def _replay(self, latents: Iterator[Tensor]) -> None:
        """The state's chunks: the loop remembers them, by a forward each, and the decoder sees the last."""
        state = self._plan.spec.state
        if state is None:
            return
        progress = self._stages.begin("replay", "chunk", keep=True)
        for done in range(state.chunks):
            next(latents)
            progress(done + 1, state.chunks)
        self._before = list(state.latent[:, :, -REACH:].split(state.chunk, dim=2))
        try:
            self._show(self._before)
            return
        except OverflowError as error:
            reason = str(error)  # and no more, since the error holds the decoder
        self._decode_in_fp32(reason)

    def forward_done(self, _chunk: int, _forward: int) -> None:
        """The loop's callback: the chunk before is finished when the next one's first forward is queued behind it."""
        self.finish()

    def finish(self) -> None:
        """Wait for the queued chunk, if there is one, and deliver it."""
        if self._queued is not None:
            if self._queued.wait is not None:
                self._queued.wait()  # an interrupt while it waits leaves the chunk queued
            chunk, self._queued = self._queued, None
            own = self._checked(chunk)
            self.latents.append(chunk.latent)
            frames = None if own is None else join_stripes(own, self._plan.cells, self._decoding)
            if frames is not None:
                self._deliver(frames)

    def _decoded(self, latent: Tensor) -> _Queued:
        on_gpu, decoder = latent.device.type == "cuda", self._decoder
        copy = latent.to("cpu", non_blocking=on_gpu)
        frames = None if decoder is None else decoder.decode(latent, later=True)
        if not on_gpu:
            return _Queued(copy, frames, None)
        return _Queued(copy, frames, queued_on(latent.device, *(() if decoder is None else (decoder.device,))))

    def _checked(self, chunk: _Queued) -> Tensor | None:
        """The chunk's frames, decoded again if a number in the VAE was too large for fp16."""
        if self._decoder is None:
            return None
        try:
            self._decoder.check()
            return chunk.frames
        except OverflowError as error:
            reason = str(error)  # and no more, since the error holds the decoder
        self._decode_in_fp32(reason)
        return self._decoder.decode(chunk.latent)

    def _decode_in_fp32(self, reason: str) -> None:
        """From now on: with a decoder that has seen what was made so far. There may be no room for more than tiles."""
        log.warning(AGAIN, reason)
        plan, self._decoder = self._plan, None
        vae = load_vae(plan.vae, device=plan.decoding_device)
        needed = estimate_vae(vae.width, plan.chunk_geometry)[1].work + MARGIN
        vae.use_tiling = plan.options.vae_tiling or needed > free_memory(vae.device)
        self._decoder = VideoDecoder(vae, *plan.cells, park=True)
        self._show([*self._before, *self.latents][-REACH // plan.spec.chunk :])

    def _show(self, latents: list[Tensor]) -> None:
        """Have the decoder see chunks whose frames were made before."""
        if self._decoder is not None:
            for latent in latents:
                self._decoder.decode(latent)


def _but_log(deliver: Callable[[], None]) -> None:
    """Deliver a last chunk. A failure is logged and not raised: the run ends with what had ended it before."""
    try:
        deliver()
    except Exception as reason:
        log.warning("The last chunk that was made could not be written: %s", reason)
