"""One run of a causal model: every chunk is sampled, decoded and written as it comes.

Python queues a chunk's kernels faster than a GPU runs them. So it waits for a chunk's frames only when the next chunk's
first forward is queued behind them: the GPU never waits for Python to write frames or to compute a camera."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..camera import pose_embedding
from ..options import CHUNK, Progress
from ..pipeline.state import WorldState, grow
from ..pipeline.two_experts import ALONE as TOGETHER_ALONE
from ..pipeline.two_experts import Together
from ..pipeline.world import World, chunk_conditioning
from ..vae import VideoDecoder, load_vae
from ..vae.decoding import REACH
from .decoding import join_stripes
from .interrupts import LaterInterruptsWait
from .memory import MARGIN, estimate_vae, free_memory
from .preparation import prepare
from .processes import ALONE, Processes
from .profile import StageRecorder
from .rollout_plan import RolloutPlan
from .stages import AGAIN
from .video import FrameWriter

log = logging.getLogger(__name__)


def run_rollout(
    plan: RolloutPlan,
    prompt: Callable[[], Tensor],
    noise: Tensor,
    generator: torch.Generator,
    stages: StageRecorder,
    processes: Processes = ALONE,
    together: Together = TOGETHER_ALONE,
) -> Path:
    """Makes the video that `plan` describes for the embedding [1, L, D] that `prompt()` gives, from `noise`
    [1, 16, f, h, w] and what the generator draws after it. Returns the video's path. Several `processes` compute each
    forward `together`, and decode a stripe of the frames each, unless in tiles; the first one encodes the image and
    writes.

    Whatever ends the run early, the video of the chunks that are done stays, and so does their state."""
    memory, context, image, decoder, model = prepare(plan, prompt, stages, processes, together)
    image = processes.share(image, 0)
    world = World(
        model, plan.cells, plan.held_frames, plan.held_sink, device=plan.device,
        **memory.place._asdict(), camera_cache_bytes=memory.camera_cache_bytes,
        sequence_parallel=together.sequence, graphs=memory.graphs,
    )  # fmt: skip
    run = _Run(plan, world, decoder, image, memory.decoding(processes))
    del decoder  # the run may take another
    if plan.state is not None:
        run.remember(plan.state, stages.begin("replay", "chunk", keep=True))
    world.prompt = context.to(plan.device)
    progress = stages.begin("chunks", "frame", keep=True)
    if not processes.first:
        run.make(noise, generator, lambda _frames: None)
        return plan.target.path
    try:
        _write(run, plan, noise, generator, progress)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(*(["the chunks that were done stay"] if run.latents else [])) from error
    finally:
        if plan.options.save_state is not None and run.latents:
            with LaterInterruptsWait(hold=True):
                run.state(context).save(plan.options.save_state)
    return plan.target.path


def _write(run: _Run, plan: RolloutPlan, noise: Tensor, generator: torch.Generator, progress: Progress) -> None:
    """The chunks of the first process into the video. What ends the run early is followed by the last chunk and the end
    of a file, which no further interrupt may break off; whoever reads a pipe may be waited for in vain."""
    further: AbstractContextManager = nullcontext() if plan.target.is_pipe else LaterInterruptsWait()
    with (
        further,
        FrameWriter(plan.target, plan.options.fps, keep_partial=True, first=plan.frames_before) as writer,
    ):

        def write(frames: Tensor) -> None:
            writer.write(frames.numpy())
            progress(writer.frames, plan.geometry.frames)

        run.make(noise, generator, write)


class _Queued(NamedTuple):
    """A chunk in host memory: its latent and its frames, or this process's stripe of them. If a GPU is still at work on
    them, they are there after `wait()`."""

    latent: Tensor
    frames: Tensor | None
    wait: Callable[[], object] | None


class _Run:
    """The chunks of one run, and those before them where it goes on from a state. `decoding`: the processes that divide
    the frames among them."""

    def __init__(
        self, plan: RolloutPlan, world: World, decoder: VideoDecoder | None, image: Tensor, decoding: Processes
    ) -> None:
        self._plan, self._world, self._decoder, self._decoding = plan, world, decoder, decoding
        self._conditioning = chunk_conditioning(image)
        self._before: list[Tensor] = []
        self.latents: list[Tensor] = []

    def remember(self, state: WorldState, progress: Progress) -> None:
        """Make the memory of a state's chunks again: the model's by a forward each, the decoder's from the last."""
        self._world.continue_from(state, self._conditioning, self._camera, progress)
        self._before = list(state.latent[:, :, -REACH:].split(CHUNK, dim=2))
        try:
            self._show(self._before)
            return
        except OverflowError as error:
            reason = str(error)  # and no more, since the error holds the decoder
        self._decode_in_fp32(reason)

    def make(self, noise: Tensor, generator: torch.Generator, deliver: Callable[[Tensor], None]) -> None:
        """Make the chunks. `deliver(frames)` gets the frames uint8 [F, H, W, 3] of each, in the first process. A chunk
        that was queued when the run is interrupted is delivered too."""

        def renoise(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, device=generator.device)

        queued: _Queued | None = None

        def finish(_forward: int = 0) -> None:
            nonlocal queued
            if queued is not None:
                if queued.wait is not None:
                    queued.wait()  # an interrupt while it waits leaves the chunk queued
                chunk, queued = queued, None
                self._finish(chunk, deliver)

        inputs = self._inputs(noise)
        given = next(inputs, None)
        try:
            while given is not None:
                latent = self._world.chunk(*given, self._plan.schedule, renoise, finish)
                queued = self._decoded(latent)
                if queued.wait is None:
                    finish()
                given = next(inputs, None)
            finish()
        except BaseException:
            if self._decoding.size == 1:  # several processes could not join their stripes any more
                _but_log(finish)
            raise

    def _inputs(self, noise: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Noise, conditioning and camera of each chunk."""
        track, device = self._plan.track, self._plan.device
        for chunk in range(self._plan.geometry.lat_f // CHUNK):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            camera = self._camera(track.poses[part], track.lens[None])
            yield _pinned(noise[:, :, part], device), _pinned(next(self._conditioning), device), _pinned(camera, device)

    def _decoded(self, latent: Tensor) -> _Queued:
        frames = None if self._decoder is None else self._decoder.decode(latent, later=True)
        if latent.device.type != "cuda":
            return _Queued(latent.cpu(), frames, None)
        copy = latent.to("cpu", non_blocking=True)
        return _Queued(copy, frames, torch.cuda.current_stream(latent.device).record_event().synchronize)

    def _finish(self, chunk: _Queued, deliver: Callable[[Tensor], None]) -> None:
        own = self._checked(chunk)
        self.latents.append(chunk.latent)
        frames = None if own is None else join_stripes(own, self._plan.cells, self._decoding)
        if frames is not None:
            deliver(frames)

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
        vae = load_vae(plan.vae, device=plan.device)
        needed = estimate_vae(vae.width, replace(plan.geometry, frames=4 * CHUNK))[1].work + MARGIN
        vae.use_tiling = plan.options.vae_tiling or needed > free_memory(plan.device)
        self._decoder = VideoDecoder(vae, *plan.cells, park=True)
        self._show([*self._before, *self.latents][-(REACH // CHUNK) :])

    def _show(self, latents: list[Tensor]) -> None:
        """Have the decoder see chunks whose frames were made before."""
        if self._decoder is not None:
            for latent in latents:
                self._decoder.decode(latent)

    def state(self, context: Tensor) -> WorldState:
        """What is done, to be continued; the state that this run continued is part of it."""
        plan = self._plan
        return grow(
            plan.state, torch.cat(self.latents, dim=2), plan.track, plan.options.prompt, context,
            frame=plan.frame, window=plan.window, sink=plan.sink, config=plan.checkpoint.config,
            release=plan.release,
        )  # fmt: skip

    def _camera(self, poses: np.ndarray, lens: np.ndarray) -> Tensor:
        geometry = self._plan.geometry
        return pose_embedding(poses, lens, height=geometry.height, width=geometry.width)


def _pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """From pinned memory a GPU gets it without a wait for what is queued there."""
    return tensor.contiguous().pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor


def _but_log(deliver: Callable[[], None]) -> None:
    """Deliver a last chunk. A failure is logged and not raised: the run ends with what had ended it before."""
    try:
        deliver()
    except Exception as reason:
        log.warning("The last chunk that was made could not be written: %s", reason)
