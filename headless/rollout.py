"""One run of a causal model: every chunk is sampled, decoded and written before the next one begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..camera import pose_embedding
from ..generation.state import WorldState, grow
from ..generation.two_experts import ALONE as TOGETHER_ALONE
from ..generation.two_experts import Together
from ..generation.world import World, chunk_conditioning
from ..geometry import CHUNK
from ..loaders import load_expert
from ..options import Progress
from ..vae import VAE, VideoDecoder, encode_first_frame, load_vae
from ..vae.decoding import REACH
from ..vae.encoding import SETTLED
from .decoding import divided_decoder, join_stripes
from .memory import MARGIN, estimate_vae, free_memory
from .processes import ALONE, Processes
from .profile import StageRecorder
from .rollout_memory import RolloutMemory, choose_rollout_memory
from .rollout_plan import RolloutPlan
from .video import FrameWriter


def run_rollout(
    plan: RolloutPlan,
    context: Tensor,
    noise: Tensor,
    generator: torch.Generator,
    stages: StageRecorder,
    processes: Processes = ALONE,
    together: Together = TOGETHER_ALONE,
) -> Path:
    """Makes the video that `plan` describes for a prompt [1, L, D], from `noise` [1, 16, f, h, w] and what the
    generator draws after it. Returns the video's path. Several `processes` compute each forward `together`,
    and decode a stripe of the frames each, unless in tiles; the first one encodes the image and writes.

    Whatever ends the run early, the video of the chunks that are done stays, and so does their state."""
    memory = choose_rollout_memory(plan, processes.least(free_memory(plan.device)), processes=processes.size)
    alone = memory.vae_tiling  # tiles are for the first process
    vae = load_vae(plan.vae, device=plan.device) if processes.first or not alone else None
    image = _encode_image(plan, vae, stages.begin("VAE encode", "chunk")) if vae and processes.first else None
    image = processes.share(image, 0)
    decoder = None if vae is None else _decoder(plan, vae, memory, ALONE if alone else processes)
    progress = stages.begin("load causal model", "B", keep=True)
    model = load_expert(
        plan.checkpoint, plan.device, plan.dtype, progress=progress,
        resident_blocks=memory.resident_blocks, shared_by=together.weights,
        arithmetic=plan.options.arithmetic, attention_mode=plan.options.attention,
    )  # fmt: skip
    world = World(
        model, plan.cells, plan.held_frames, plan.held_sink, device=plan.device,
        eight_bit=memory.eight_bit, on_host=memory.on_host, fp8=memory.fp8,
        camera_cache_bytes=memory.camera_cache_bytes,
        sequence_parallel=together.sequence, graphs=memory.graphs,
    )  # fmt: skip
    run = _Run(plan, world, decoder, image, ALONE if alone else processes)
    if plan.state is not None:
        run.remember(plan.state, stages.begin("replay", "chunk", keep=True))
    world.prompt = context.to(plan.device)
    progress = stages.begin("chunks", "frame", keep=True)
    if not processes.first:
        deque(run.videos(noise, generator), maxlen=0)
        return plan.target.path
    try:
        with FrameWriter(plan.target, plan.options.fps, keep_partial=True) as writer:
            for frames in run.videos(noise, generator):
                assert frames is not None
                writer.write(frames.numpy())
                progress(writer.frames, plan.geometry.frames)
    finally:
        if plan.options.save_state is not None and run.latents:
            run.state(context).save(plan.options.save_state)
    return plan.target.path


class _Run:
    """The chunks of one run, and those before them where it goes on from a state. `decoding`: the processes that divide
    the frames among them."""

    def __init__(
        self, plan: RolloutPlan, world: World, decoder: VideoDecoder | None, image: Tensor, decoding: Processes
    ) -> None:
        self._plan, self._world, self._decoder, self._decoding = plan, world, decoder, decoding
        self._conditioning = chunk_conditioning(image)
        self.latents: list[Tensor] = []

    def remember(self, state: WorldState, progress: Progress) -> None:
        """Make the memory of a state's chunks again: the model's by a forward each, the decoder's from the last."""
        self._world.continue_from(state, self._conditioning, self._camera, progress)
        if self._decoder is not None:
            for latent in state.latent[:, :, -REACH:].split(CHUNK, dim=2):
                self._decoder.decode(latent)

    def videos(self, noise: Tensor, generator: torch.Generator) -> Iterator[Tensor | None]:
        """The frames uint8 [F, H, W, 3] of each chunk; None where another process gets them."""
        for latent in self._chunks(noise, generator):
            own = None if self._decoder is None else self._decoder.decode(latent)
            yield None if own is None else join_stripes(own, self._plan.cells, self._decoding)

    def _chunks(self, noise: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Sample the run's chunks, one after the other."""

        def renoise(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, device=generator.device)

        track = self._plan.track
        for chunk in range(self._plan.geometry.lat_f // CHUNK):
            part = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
            camera = self._camera(track.poses[part], track.lens[None])
            latent = self._world.chunk(
                noise[:, :, part], next(self._conditioning), camera, self._plan.schedule, renoise
            )
            self.latents.append(latent.cpu())
            yield latent

    def state(self, context: Tensor) -> WorldState:
        """What is done, to be continued; the state that this run continued is part of it."""
        plan = self._plan
        return grow(
            plan.state, torch.cat(self.latents, dim=2), plan.track, plan.options.prompt, context,
            frame=plan.frame, window=plan.window, sink=plan.sink, config=plan.checkpoint.config,
        )  # fmt: skip

    def _camera(self, poses: np.ndarray, lens: np.ndarray) -> Tensor:
        geometry = self._plan.geometry
        return pose_embedding(poses, lens, height=geometry.height, width=geometry.width)


def _decoder(plan: RolloutPlan, vae: VAE, memory: RolloutMemory, processes: Processes) -> VideoDecoder:
    vae.use_tiling = memory.vae_tiling
    return divided_decoder(vae, plan.cells, processes, park=memory.park_decoder)


def _encode_image(plan: RolloutPlan, vae: VAE, progress: Progress) -> Tensor:
    """The image and the grey frames after it as a latent [1, 16, n, h, w], up to where the grey frames repeat.

    Nothing else is on the GPU yet, so that tiles are for cards that cannot hold even this."""
    frames = 4 * min(plan.made_frames + plan.geometry.lat_f, SETTLED) - 3
    needed = estimate_vae(vae.width, plan.geometry)[0].work + MARGIN
    vae.use_tiling = plan.options.vae_tiling or needed > free_memory(plan.device)
    return encode_first_frame(vae, plan.frame, frames, progress).cpu()
