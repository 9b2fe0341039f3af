"""The World (the model with its KV cache) and the decoder of a walk, restored from saved chunks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import numpy as np
import torch
from torch import Tensor

from ...camera.plucker import write_embedding
from ...options import CELL
from ...pipeline.spec import made_chunks
from ...pipeline.state import WorldState
from ...pipeline.world import World
from ...vae import PreviewDecoder, VideoDecoder
from ..camera import RecordedCamera, WalkingCamera
from ..engine import Engine
from ..shown.decoders import resume_decoder
from ..store import WalkStore

log = logging.getLogger(__name__)
MOST_REPLAYED = 256
"""If a walk has at most this many latent frames, a return to an earlier chunk recomputes all keys and values. In a
longer walk only those in the attention window are recomputed."""


class WalkWorld:
    """A base class that creates a walk's World (the model with its KV cache) and decoder, and restores both from the
    walk's saved chunks."""

    engine: Engine
    store: WalkStore
    camera: WalkingCamera | RecordedCamera
    _state: WorldState | None
    _conditioning: list[Tensor]
    """The image inputs, [1, 20, chunk, h, w], of a video's first chunks; the last tensor serves all later chunks."""
    _rays: np.ndarray
    _chunk_count: int
    _start_pose: np.ndarray
    _world: World
    _decoder: VideoDecoder | PreviewDecoder

    def rebuild(self, *, new_prompt: bool) -> None:
        """Recompute the KV cache from the saved chunks, each with its saved prompt, and create a new decoder. With
        `new_prompt`, all chunks get the walk's last prompt. With it, or in a long walk, recompute only the attention
        window's chunks."""
        size, made = self.engine.chunk, self.store.chunks
        if self.store.latent_frames <= MOST_REPLAYED and not new_prompt:
            chunks = list(range(made))
        else:  # the chunks that the next chunk attends to: the chunks in the sink, and the latest ones
            sink, window = (-(-frames // size) for frames in (self.engine.window.sink, self.engine.window.frames))
            chunks = sorted({*range(min(sink, made)), *range(max(0, made - (window - sink)), made)})
        self._rebuild(chunks, self.store.last_prompt[1] if new_prompt else None)
        self.store.record_rebuild(new_prompt=new_prompt)

    def _rebuild(self, chunks: Sequence[int], context: Tensor | None = None) -> None:
        """Replace `_world` and `_decoder` by new ones. Fill the KV cache from the video that the walk continues, if
        any, and from the walk's saved chunks with the indices `chunks`. `context` [1, L, D] replaces the prompts of
        `chunks`, unless None."""
        self._free_world()  # frees their memory before the new ones are built
        self._chunk_count = self.store.chunks
        self._start_pose = self.camera.pose if not self._chunk_count else self.store.poses()[0]
        self._world = self.engine.new_world()
        size = self.engine.chunk
        for given in () if self._state is None else made_chunks(self._state, map(self._y_of_video, count())):
            self._world.prompt = given.context.to(self.engine.device)
            self._world.replay(given.latent, given.y, given.camera)
        for index in chunks:
            frames = index * size, (index + 1) * size
            self._world.prompt = (self.store.context(frames[0]) if context is None else context).to(self.engine.device)
            camera = self._camera_map(self.store.relative_poses(*frames))
            self._world.replay(self.store.latent(*frames), self._y(index), camera)
        self._world.prompt = self.store.last_prompt[1].to(self.engine.device)
        self._decoder = resume_decoder(self.engine, self.store, self._state, exact=False)

    def _y(self, chunk: int) -> Tensor:
        return self._y_of_video(chunk + (0 if self._state is None else self._state.chunks))

    def _y_of_video(self, chunk: int) -> Tensor:
        return self._conditioning[min(chunk, len(self._conditioning) - 1)]

    def _free_world(self) -> None:
        """Free the World and the decoder, after the GPU has finished: a running CUDA graph must keep its memory."""
        decoder = self.__dict__.get("_decoder")
        for device in {self.engine.device, *(() if decoder is None else (decoder.device,))}:
            if device.type == "cuda":
                with suppress(RuntimeError):  # a failed GPU replays nothing
                    torch.cuda.synchronize(device)
        del decoder
        for name in ("_world", "_decoder"):
            self.__dict__.pop(name, None)

    def _check_frames(self) -> None:
        try:
            self._decoder.check()
            return
        except OverflowError as error:
            log.warning("The next frames are decoded in fp32: %s.", error)
        del self._decoder  # frees its memory before the new one is built
        self._decoder = resume_decoder(self.engine, self.store, self._state, exact=True)

    def _camera_map(self, relative_poses: np.ndarray) -> Tensor:
        on_gpu = self.engine.device.type == "cuda"
        camera = torch.empty(1, 6 * CELL * CELL, len(relative_poses), *self.engine.cells, pin_memory=on_gpu)
        write_embedding(camera, relative_poses, self._rays)
        return camera
