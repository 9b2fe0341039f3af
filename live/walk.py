"""A walk: a video that a user steers while a model makes it chunk by chunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import torch
from torch import Tensor

from ..camera.path import lens_from_fov
from ..camera.plucker import pixel_rays
from ..camera.poses import check_poses
from ..errors import InputError
from ..model.host_memory import queued_on
from ..pipeline.delivery import HostCopy
from ..pipeline.geometry import chunk_conditioning
from ..pipeline.state import WorldState
from ..sampling.noise import FixedLengthNoise, Noise, StepNoise
from .camera import FASTEST_PITCH_DEG, WALKING_SPEED, WALKING_UNIT, RecordedCamera, WalkingCamera, relative_poses
from .controls import FRAMES_PER_LATENT, Controls, Input
from .engine import Engine, Start
from .shown.decoders import decode_parts, decode_saved
from .shown.frames import Frames, KeyChangedError, LatentChunk, Part, make_receipts
from .store import WalkStore
from .worlds.world import WalkWorld

if TYPE_CHECKING:
    from typing_extensions import Unpack

PREEMPT = 0.3
"""A change of keys restarts the running chunk if the last chunk's first frames took longer than this many seconds."""


class WalkOptions(TypedDict, total=False):
    """The options of each walk (steered video) of a session.

    speed: the speed of key W, as a fraction of the largest in training; default 0.5.
    walls: whether the walls of a known map stop the camera, by default true.
    path: camera-to-world poses [n, 4, 4] to follow, one per video frame.
    seed: the seed of the noise; None keeps the seed with which the walk starts.
    """

    speed: float
    walls: bool
    path: np.ndarray | None
    seed: int | None


class Walk(WalkWorld):
    """A steered video that is saved in a folder. Only the iterator of `chunk_ahead` may run in another thread."""

    def __init__(
        self,
        engine: Engine,
        start: Start | WorldState,
        controls: Controls,
        folder: Path,
        **options: Unpack[WalkOptions],
    ) -> None:
        """Prepare a walk. Raises InputError for a start that does not fit the engine, CameraError for an invalid
        path."""
        start = Start.of(start)
        start.check(engine)
        self.engine, self.controls = engine, controls
        self._state, self.frame = (before := start.state), start.frame
        lens, scale = (start.lens, 0.0) if before is None else (before.lens[-1].numpy(), before.scale)
        self._lens = lens_from_fov() if lens is None else lens
        self._rays = pixel_rays(self._lens[None], *engine.size)
        speed, path = options.get("speed", WALKING_SPEED), options.get("path")
        path = None if path is None else check_poses(path, "path")
        pose = None if before is None else before.last_pose.numpy()
        self.seed = start.seed if (seed := options.get("seed")) is None else seed
        with_walls = options.get("walls", True) and path is None
        self.map = engine.map.locate(self.frame, self.seed) if engine.map is not None and with_walls else None
        self.camera = (
            WalkingCamera(pose, scale or WALKING_UNIT, speed, FASTEST_PITCH_DEG, self.map)
            if path is None
            else RecordedCamera(path, pose, scale)
        )
        image = engine.encode_image(self.frame) if start.image is None else start.image
        chunks = -(-image.shape[2] // engine.chunk) + 1  # the last one serves all later chunks
        self._conditioning = list(islice(chunk_conditioning(image, engine.chunk), chunks))
        size = engine.chunk, engine.cells
        if path is None:
            self._noise: Noise = StepNoise(self.seed, *size)
        else:
            frames = (len(path) - 1) // FRAMES_PER_LATENT + (before is None)
            self._noise = FixedLengthNoise(self.seed, *size, frames)
        settings = {"seed": self.seed, "noise": self._noise.order, "speed": speed, "walls": self.map is not None}
        picture = {"frame": self.frame, "image": image}
        self.store = WalkStore(folder, engine, picture, self._lens, self.camera.unit, before, settings)
        if before is None or start.prompt not in ("", before.prompts[-1].text):
            self.store.add_prompt(start.prompt, engine.encode_prompt(start.prompt))
        else:
            self.store.add_prompt(before.prompts[-1].text, before.prompts[-1].context)
        self.frames = self.frames_before
        self.preempts, self.preempted, self._delay = True, 0, 0.0
        self.found = self._blocked = False
        self._key_changes_when_stuck: int | None = None  # the controls' count of `key_changes` at that time
        self._causes: list[Input] = []  # prompts and returns to earlier chunks since the last chunk
        self._rebuild(())

    @property
    def ended(self) -> bool:
        """Whether the rest of the recorded path is shorter than a chunk; False without a path."""
        frames = FRAMES_PER_LATENT * self.engine.chunk
        return self.camera.frames_left < (frames - FRAMES_PER_LATENT if self._begins_video else frames)

    @property
    def _begins_video(self) -> bool:
        return self._state is None and self._chunk_count == 0

    @property
    def camera_rests(self) -> bool:
        """Whether the camera would stand still in the next chunk, for lack of input or because a wall blocks it."""
        if self._blocked:
            return not self.controls.has_changed
        return not (self.controls.has_input or self.camera.is_moving)

    def ignore_walking_keys(self) -> None:
        """Ignore held walking keys until a key changes."""
        self._key_changes_when_stuck = self.controls.key_changes

    def detect_crate(self) -> bool:
        """Check whether the camera has come near the crate (the goal) of the walk's map. Return True at most once in a
        walk; later calls, and all calls without a map, return False."""
        if self.found or self.map is None:
            return False
        self.found = self.map.is_near_crate(self.camera.pose[:3, 3])
        return self.found

    @property
    def chunks(self) -> int:
        """The number of chunks of this walk, without those of the video that it continues."""
        return self._chunk_count

    def chunk(self) -> Iterator[Frames]:
        """Make and save the next chunk. Yield one Frames for the first latent frame, and one for the others, if any."""
        chunk = self._next_chunk()
        ahead, apart = self._world.graphs_recorded, self._decoder.device != chunk.latent.device
        if ahead and apart:
            self.update_cache()
        parts = decode_parts(chunk, self._decoder)
        if ahead and not apart:
            self.update_cache()
        for frames in self._decoded_parts(chunk, parts):
            if frames.last:
                self._save(chunk)
            yield frames
        if not ahead:
            self.update_cache()
        self._check_frames()

    def chunk_ahead(self) -> Iterator[Frames]:
        """Make and save the next chunk, and return an iterator that decodes its frames in any thread. Until the
        iterator ends, call no other method than `update_cache`."""
        chunk = self._next_chunk()
        frames = self._decoded_parts(chunk, decode_parts(chunk, self._decoder))
        self._save(chunk)
        return frames

    def update_cache(self) -> None:
        """Add the last chunk to the KV cache now; otherwise the next chunk does so first."""
        self._world.remember()

    def _next_chunk(self) -> LatentChunk:
        """Make the next chunk; on a slow machine (see PREEMPT) a change of keys restarts it once."""
        changes, camera, forwards = self.controls.key_changes, copy(self.camera), len(self.engine.schedule.timesteps)

        def check_keys(forward: int) -> None:
            if 2 * (forward + 1) > forwards:
                return
            queued_on(self.engine.device)()
            if self.controls.key_changes != changes:
                raise KeyChangedError(camera)

        slow = self._delay > PREEMPT and self._noise.order == StepNoise.order and forwards > 1
        try:
            return self._make_chunk(check_keys if slow and self.preempts else None)
        except KeyChangedError as change:
            self.camera = change.camera
            self.controls.restore()
            self.preempted += 1
            return self._make_chunk(None)

    def _make_chunk(self, after_forward: Callable[[int], None] | None) -> LatentChunk:
        began, now, size = time.perf_counter(), time.monotonic(), self.engine.chunk
        begins_video = self._begins_video
        before = None if begins_video else self.camera.pose
        video_frames = FRAMES_PER_LATENT * size - (FRAMES_PER_LATENT if begins_video else 0)
        inputs = self.controls.take(video_frames)
        if self._key_changes_when_stuck == self.controls.key_changes:
            inputs = inputs._replace(axes=inputs.axes * (0, 0, 1, 1))
        poses = self.camera.move(inputs)
        steered = isinstance(self.camera, WalkingCamera)
        self._blocked = steered and before is not None and bool((poses == before).all())
        if begins_video:
            poses = np.concatenate([self._start_pose[None], poses])
        world = poses[0 if begins_video else FRAMES_PER_LATENT - 1 :: FRAMES_PER_LATENT]
        relative = relative_poses(world, before, self.camera.unit)
        given = self._noise.begin(self._chunk_count), self._y(self._chunk_count), self._camera_map(relative)
        latent = self._world.chunk(*given, self.engine.schedule, self._noise.draw, after_forward)
        copy = HostCopy.of(latent)
        receipts = make_receipts([*self._causes, *inputs.records], now, self._chunk_count * size, begins_video)
        self._causes.clear()
        return LatentChunk(latent, copy.latent, copy.wait, relative, poses, self._chunk_count, inputs, began, receipts)

    def _decoded_parts(self, chunk: LatentChunk, parts: Iterable[Part]) -> Iterator[Frames]:
        shown, count, first = 0, min(chunk.latent.shape[2], 2), chunk.number * self.engine.chunk
        event, waited = chunk.inputs.last_number, chunk.inputs.waited
        for part, (pixels, wait) in enumerate(parts):
            wait()
            seconds = time.perf_counter() - chunk.began
            self._delay = seconds if part == 0 else self._delay
            inputs = tuple(each for each in chunk.receipts if count == 1 or (each.latent_frame <= first) == (part == 0))
            made = chunk.number, self.frames, part, count, event, seconds
            poses = chunk.poses[shown : shown + len(pixels)]
            shown += len(pixels)
            self.frames += len(pixels)
            yield Frames(pixels.numpy(), *made, poses, waited, inputs)

    def _save(self, chunk: LatentChunk) -> None:
        if self._chunk_count == 0 and self.engine.device.type == "cpu":
            # With another number of threads, sums would be computed in another order.
            self.store.add_setting("threads", torch.get_num_threads())
        self.store.append(chunk.copy, chunk.relative_poses, chunk.poses, chunk.inputs)
        self._chunk_count += 1

    def prompt(self, text: str, context: Tensor, *, refresh: bool = False, cause: Input | None = None) -> None:
        """Set the prompt of the next chunks; `context` is its embedding [1, L, D]. `refresh` recomputes the attention
        window's keys and values from the saved chunks, and raises InputError if saving has failed. `cause`: the input
        that changes the prompt; the next chunk's frames report it."""
        if refresh and (failure := self.store.failure):
            raise InputError(f"the past frames cannot change at once: {failure}; send the prompt without `refresh`")
        self.store.add_prompt(text, context)
        self._world.prompt = context.to(self.engine.device)
        self._causes += [] if cause is None else [cause]
        if refresh and self.store.latent_frames:
            self.rebuild(new_prompt=True)

    def back(self, chunk: int, cause: Input | None = None) -> None:
        """Keep the first `chunk` chunks, discard the later ones, and continue from there. `cause`: the input that
        demands this, for the next chunk's Receipts. Raises InputError if fewer than `chunk` chunks are saved."""
        if not 0 <= chunk <= self.store.chunks:
            raise InputError(f"back to chunk {chunk}: expected 0 to {self.store.chunks}, the chunks that are kept")
        self.store.cut(chunk)
        self._causes = [] if cause is None else [cause]
        poses = self.store.poses()
        self.camera.place(poses[-1] if len(poses) else self._start_pose, max(0, len(poses) - 1))
        self.rebuild(new_prompt=False)
        self.frames = max(0, FRAMES_PER_LATENT * self.store.latent_frames + (self.frames_before or -3))

    def close(self) -> None:
        """Free the World and the decoder, and close the walk's files. The saved data can still be read."""
        self._free_world()
        self.store.close()

    @property
    def frames_before(self) -> int:
        """The number of frames in the video that the walk continues, or 0."""
        return 0 if self._state is None else self._state.frames

    def decode_again(self, *, exact: bool) -> Iterator[Frames]:
        """Decode all saved chunks with the VAE, also after `close`, and yield their frames. Raises OverflowError if a
        value exceeds fp16, unless `exact` selects fp32."""
        return decode_saved(self.engine, self.store, self._state, exact=exact)
