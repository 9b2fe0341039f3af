"""One walk: a causal model's World, a decoder and a camera, chunk by chunk. One thread uses it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..camera.path import lens_from_fov
from ..camera.plucker import pixel_rays, write_embedding
from ..camera.poses import check_poses
from ..errors import InputError
from ..model.host_memory import queued_on
from ..options import CELL
from ..pipeline.delivery import HostCopy
from ..pipeline.spec import made_chunks
from ..pipeline.state import WorldState
from ..pipeline.world import World, chunk_conditioning
from ..sampling.noise import Noise, PathNoise, StepNoise
from ..vae import PreviewDecoder, VideoDecoder
from ..vae.decoding import REACH
from .camera import PITCH_DEG, WALKING_UNIT, RecordedCamera, WalkingCamera, model_steps
from .controls import FRAMES_OF_ONE, Controls, Wishes
from .engine import Engine, Start
from .kept import Kept

log = logging.getLogger(__name__)

PREEMPT = 0.3
"""Seconds: a chunk that takes longer until its first frames are there is dropped where a key has changed."""
MOST_REPLAYED = 256
"""Latent frames of a walk up to which a step back computes the keys and values of all again. Of a longer one those that
stay in the window are enough: the sink's, and the last."""


@dataclass(frozen=True)
class Frames:
    """Frames `pixels` uint8 [n, H, W, 3] as they are handed out: `part` 0 of a chunk's `parts` is of its first latent
    frame, part 1 of its others. `first`: the number of the first of them in the walk. `event`: the last input that
    the chunk was made with. `seconds`: from where the inputs were taken to here. `poses`: c2w float64 [n, 4, 4] of
    these frames, None where they are unknown. `waited`: seconds from where the last input came to where it was taken,
    None where the chunks before had it."""

    pixels: np.ndarray
    chunk: int
    first: int
    part: int
    parts: int
    event: int | None
    seconds: float
    poses: np.ndarray | None = None
    waited: float | None = None

    @property
    def last(self) -> bool:
        """Whether the chunk is whole."""
        return self.part == self.parts - 1


Part = tuple[Tensor, Callable[[], object]]
"""Frames, which are there when the function has returned."""


class _Made(NamedTuple):
    """A chunk's `latent`, its `copy` in host memory, which is there after `wait()` or when its frames are, the camera's
    `steps` and `poses` in it, its `number`, the inputs, and when those were taken."""

    latent: Tensor
    copy: Tensor
    wait: Callable[[], object]
    steps: np.ndarray
    poses: np.ndarray
    number: int
    wishes: Wishes
    began: float


class _KeyChangedError(Exception):
    """A chunk is dropped: a key has changed since it was begun. `camera`: as it was before the chunk."""

    def __init__(self, camera: WalkingCamera | RecordedCamera) -> None:
        self.camera = camera


class Walk:
    """Walks from a Start, or goes on from a state, and keeps all in a `folder`. `speed` as in WalkingCamera."""

    _world: World
    _decoder: VideoDecoder | PreviewDecoder

    def __init__(
        self,
        engine: Engine,
        start: Start | WorldState,
        controls: Controls,
        folder: Path,
        speed: float = 1.0,
        path: np.ndarray | None = None,
        seed: int | None = None,
    ) -> None:
        """`path`: poses [n, 4, 4] that are walked, whatever is asked for. `seed`: in place of the Start's. Raises
        InputError, CameraError for a path that is none."""
        start = Start.of(start)
        start.check(engine)
        self.engine, self.controls = engine, controls
        self._state, self.frame = (before := start.state), start.frame
        lens, scale = (start.lens, 0.0) if before is None else (before.lens[-1].numpy(), before.scale)
        self._lens = lens_from_fov() if lens is None else lens
        self._rays = pixel_rays(self._lens[None], *engine.size)
        path = None if path is None else check_poses(path, "path")
        pose = None if before is None else before.last_pose.numpy()
        self.camera = (
            WalkingCamera(pose, scale or WALKING_UNIT, speed, PITCH_DEG)
            if path is None
            else RecordedCamera(path, pose, scale)
        )
        image = engine.encode_image(self.frame) if start.image is None else start.image
        self._conditioning = self._settling(image)
        seed = start.seed if seed is None else seed
        self._noise = self._new_noise(seed, path)
        facts = {"seed": seed, "noise": self._noise.order, "speed": speed}
        picture = {"frame": self.frame, "image": image}
        self.kept = Kept(folder, engine, picture, self._lens, self.camera.unit, before, facts)
        if before is None or start.prompt not in ("", before.prompts[-1].text):
            self.kept.prompt(start.prompt, engine.encode_prompt(start.prompt))
        else:
            self.kept.prompt(before.prompts[-1].text, before.prompts[-1].context)
        self.frames = self.frames_before
        self.preempts, self.preempted, self._answer = True, 0, 0.0
        self._rebuild(())

    @property
    def ended(self) -> bool:
        """Whether a path was walked that has no whole chunk left."""
        frames = FRAMES_OF_ONE * self.engine.chunk
        return self.camera.left < (frames - FRAMES_OF_ONE if self._first_of_all else frames)

    @property
    def _first_of_all(self) -> bool:
        """Whether the next chunk is the video's first, whose first latent frame is the picture alone."""
        return self._state is None and self._made == 0

    @property
    def chunks(self) -> int:
        """Chunks of this walk, without those of the state that it goes on from."""
        return self._made

    def chunk(self) -> Iterator[Frames]:
        """The next chunk: the inputs are taken, the model makes it, its frames are handed out, the first latent frame's
        before the others are decoded. The chunk is kept when its last frames are, and remembered after that.

        A GPU that replays recorded forwards is asked to remember the chunk before its frames are waited for. So it has
        work while Python hands the frames out, and beside another GPU that decodes them."""
        made = self._next_chunk()
        ahead, apart = self._world.replays, self._decoder.device != made.latent.device
        if ahead and apart:
            self.remember()
        parts = self._parts(made)
        if ahead and not apart:
            self.remember()
        for frames in self._handed_out(made, parts):
            if frames.last:
                self._keep(made)
            yield frames
        if not ahead:
            self.remember()
        self._check_frames()

    def chunk_ahead(self) -> Iterator[Frames]:
        """The next chunk, made and kept when this returns. What is returned decodes its frames when it is asked for
        them: in order, and while nothing else is asked of this walk but to `remember` and to make the next chunk."""
        made = self._next_chunk()
        frames = self._handed_out(made, self._parts(made))
        self._keep(made)
        return frames

    def remember(self) -> None:
        """The keys and values of the chunk that was made last, for the next one."""
        self._world.remember()

    def _next_chunk(self) -> _Made:
        """Make the next chunk. Where it takes long and a key has changed since it was begun, it is dropped after its
        first forward and begun again with the keys of then, once."""
        turns = self.controls.turns
        camera: WalkingCamera | RecordedCamera | None = copy(self.camera)

        def look_again(_forward: int) -> None:
            nonlocal camera
            before, camera = camera, None
            if before is None:  # not the first forward
                return
            queued_on(self.engine.device)()
            if self.controls.turns != turns:
                raise _KeyChangedError(before)

        slow = (
            self._answer > PREEMPT and self._noise.order == StepNoise.order and len(self.engine.schedule.timesteps) > 1
        )
        try:
            return self._make_chunk(look_again if slow and self.preempts else None)
        except _KeyChangedError as change:
            self.camera = change.camera
            self.controls.put_back()
            self.preempted += 1
            return self._make_chunk(None)

    def _make_chunk(self, tell: Callable[[int], None] | None) -> _Made:
        began, size = time.perf_counter(), self.engine.chunk
        first_of_all = self._first_of_all
        before = None if first_of_all else self.camera.pose
        video_frames = FRAMES_OF_ONE * size - (FRAMES_OF_ONE if first_of_all else 0)
        wishes = self.controls.take(video_frames)
        poses = self.camera.walk(wishes)
        if first_of_all:
            poses = np.concatenate([self._start_pose[None], poses])
        world = poses[0 if first_of_all else FRAMES_OF_ONE - 1 :: FRAMES_OF_ONE]
        steps = model_steps(world, before, self.camera.unit)
        given = self._noise.begin(self._made), self._y(self._made), self._camera(steps)
        latent = self._world.chunk(*given, self.engine.schedule, self._noise.draw, tell)
        copy = HostCopy.of(latent)
        return _Made(latent, copy.latent, copy.wait, steps, poses, self._made, wishes, began)

    def _handed_out(self, made: _Made, parts: Iterable[Part]) -> Iterator[Frames]:
        shown = 0
        for part, (pixels, wait) in enumerate(parts):
            wait()
            seconds, count = time.perf_counter() - made.began, min(made.latent.shape[2], 2)
            poses = made.poses[shown : shown + len(pixels)]
            self._answer = seconds if part == 0 else self._answer
            event, waited = made.wishes.event, made.wishes.waited
            frames = Frames(pixels.numpy(), made.number, self.frames, part, count, event, seconds, poses, waited)
            shown += len(pixels)
            self.frames += len(pixels)
            yield frames

    def _keep(self, made: _Made) -> None:
        if self._made == 0 and self.engine.device.type == "cpu":
            self.kept.note("threads", torch.get_num_threads())  # another number adds up in another order
        self.kept.append(made.copy, made.steps, made.poses, made.wishes)
        self._made += 1

    def prompt(self, text: str, context: Tensor, *, refresh: bool = False) -> None:
        """From the next chunk on. With `refresh` the window's keys and values are computed again with this prompt, a
        forward a chunk, so that what is seen changes at once. Raises InputError for that where the disk is full: the
        chunks of the window are not there."""
        if refresh and self.kept.failure:
            raise InputError(f"the picture cannot change at once: {self.kept.failure}; say the prompt without that")
        self.kept.prompt(text, context)
        self._world.prompt = context.to(self.engine.device)
        if refresh and self.kept.latent_frames:
            self.rebuild(refresh=True)

    def rebuild(self, *, refresh: bool) -> None:
        """Compute keys and values again from what is kept: of all chunks, each with its own prompt, or (`refresh`) of
        the window's with the last prompt."""
        whole = self.kept.latent_frames <= MOST_REPLAYED and not refresh
        chunks = range(self.kept.chunks) if whole else self._in_the_window()
        self._rebuild(chunks, self.kept.last_prompt[1] if refresh else None)
        self.kept.rebuilt(refresh=refresh)

    def back(self, chunk: int) -> None:
        """Go back to where so many chunks of this walk were made. Raises InputError."""
        if not 0 <= chunk <= self.kept.chunks:
            raise InputError(f"back to chunk {chunk}: expected 0 to {self.kept.chunks}, the chunks that are kept")
        self.kept.cut(chunk)
        poses = self.kept.poses()
        self.camera.place(poses[-1] if len(poses) else self._start_pose, max(0, len(poses) - 1))
        self.rebuild(refresh=False)
        self.frames = max(0, FRAMES_OF_ONE * self.kept.latent_frames + (self._state.frames if self._state else -3))

    def close(self) -> None:
        """Gives world and decoder back. What was kept can still be read."""
        self._drop()
        self.kept.close()

    def _rebuild(self, chunks: Sequence[int], context: Tensor | None = None) -> None:
        """A World and a decoder that have seen these chunks, each with its own prompt or with this one."""
        self._drop()  # their memory is free before the new ones'
        self._made = self.kept.chunks
        self._start_pose = self.camera.pose if not self._made else self.kept.poses()[0]
        self._world = self.engine.new_world()
        size = self.engine.chunk
        for given in () if self._state is None else made_chunks(self._state, map(self._y_of_video, count())):
            self._world.prompt = given.context.to(self.engine.device)
            self._world.replay(given.latent, given.y, given.camera)
        for index in chunks:
            frames = index * size, (index + 1) * size
            self._world.prompt = (self.kept.context(frames[0]) if context is None else context).to(self.engine.device)
            camera = self._camera(self.kept.steps(*frames))
            self._world.replay(self.kept.latent(*frames), self._y(index), camera)
        self._world.prompt = self.kept.last_prompt[1].to(self.engine.device)
        self._decoder = self._new_decoder(exact=False)

    def _settling(self, image: Tensor) -> list[Tensor]:
        """The y of a video's first chunks; all later ones have that of the last of these."""
        size = self.engine.chunk
        return list(islice(chunk_conditioning(image, size), -(-image.shape[2] // size) + 1))

    def _y(self, chunk: int) -> Tensor:
        """What the model gets of the picture for a chunk of this walk, whichever chunks it was given before."""
        return self._y_of_video(chunk + (0 if self._state is None else self._state.chunks))

    def _y_of_video(self, chunk: int) -> Tensor:
        return self._conditioning[min(chunk, len(self._conditioning) - 1)]

    def _drop(self) -> None:
        """What GPUs still repeat ends before: torch may give a recording's memory back though it is repeated on another
        stream than it was recorded on."""
        decoder = self.__dict__.get("_decoder")
        for device in {self.engine.device, *(() if decoder is None else (decoder.device,))}:
            if device.type == "cuda":
                with suppress(RuntimeError):  # a GPU that failed repeats nothing
                    torch.cuda.synchronize(device)
        del decoder
        for name in ("_world", "_decoder"):
            self.__dict__.pop(name, None)

    def _in_the_window(self) -> list[int]:
        """The chunks that the next one looks back on: the sink's, and the last."""
        size, made = self.engine.chunk, self.kept.chunks
        sink, window = (-(-frames // size) for frames in (self.engine.window.sink, self.engine.window.frames))
        return sorted({*range(min(sink, made)), *range(max(0, made - (window - sink)), made)})

    def _new_decoder(self, *, exact: bool) -> VideoDecoder | PreviewDecoder:
        """One that has seen the last frames, as far as a decoder reaches back."""
        preview, made = self.engine.new_preview, self.kept.latent_frames
        decoder = self.engine.new_decoder(exact) if preview is None else preview()
        parts = [self.kept.latent(max(0, made - REACH), made)] if made else []
        if self._state is not None and made < REACH:
            parts.insert(0, self._state.latent[:, :, made - REACH :])
        for part in parts:
            for latent in part.split(1, dim=2):
                decoder.decode(latent)
        return decoder

    @property
    def frames_before(self) -> int:
        """Frames of the video that the walk goes on from."""
        return 0 if self._state is None else self._state.frames

    def decode_again(self, *, exact: bool) -> Iterator[Frames]:
        """Decode all that is kept by the VAE, also after `close`. Raises OverflowError as a VideoDecoder does."""
        decoder, first = self.engine.new_decoder(exact), self.frames_before
        if self._state is not None:
            decoder.decode(self._state.latent[:, :, -REACH:])
        for number in range(self.kept.latent_frames):
            pixels = decoder.decode(self.kept.latent(number, number + 1)).numpy()
            yield Frames(pixels, number // self.engine.chunk, first, 0, 1, None, 0.0)
            first += len(pixels)

    def _parts(self, made: _Made) -> Iterable[Part]:
        """The frames of the first latent frame, then of the others. A GPU is asked for all of them now; a processor
        decodes each when it is asked for. Another GPU than the model's gets the latent by way of host memory, for which
        Python waits: a copy from one to the other would come behind all that the first is asked for meanwhile."""
        latent = made.latent
        if self._decoder.device != latent.device:
            made.wait()
            latent = made.copy
        parts = (part for part in latent.split((1, latent.shape[2] - 1), dim=2) if part.shape[2])
        queue = ((self._decoder.decode(part, later=True), queued_on(self._decoder.device)) for part in parts)
        return list(queue) if self._decoder.device.type == "cuda" else queue

    def _check_frames(self) -> None:
        """From now on in fp32 if a number was too large for fp16. The chunk whose frames show it was handed out."""
        try:
            self._decoder.check()
            return
        except OverflowError as error:
            log.warning("The next frames are decoded in fp32: %s.", error)
        del self._decoder  # its memory is free before the new one's
        self._decoder = self._new_decoder(exact=True)

    def _new_noise(self, seed: int, path: np.ndarray | None) -> Noise:
        size, cells = self.engine.chunk, self.engine.cells
        if path is None:
            return StepNoise(seed, size, cells)
        return PathNoise(seed, size, cells, (len(path) - 1) // FRAMES_OF_ONE + (self._state is None))

    def _camera(self, steps: np.ndarray) -> Tensor:
        on_gpu = self.engine.device.type == "cuda"
        camera = torch.empty(1, 6 * CELL * CELL, len(steps), *self.engine.cells, pin_memory=on_gpu)
        write_embedding(camera, steps, self._rays)
        return camera
