"""The checked plan of a causal run, from the user's options, the model and the state to continue."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..camera import CameraTrack, begin_track, continue_track, pose_embedding
from ..camera.path import CameraPath
from ..camera.pose_folder import PoseFolder
from ..errors import InputError
from ..model.config import ModelConfig
from ..options import CHUNKS, GUIDE_SCALE, STEPS, Release, SolverName, Window
from ..sampling import GuidedSchedule, few_step_schedule
from .chunk_loop import Chunk, ChunkLoop
from .geometry import Geometry, chunk_conditioning, explicit_geometry
from .state import Prompt, WorldState
from .world import Schedule, check_causal

STANDING_STILL = "There is no camera path: the camera stands still."
NO_OTHERS: Mapping[int, Tensor] = MappingProxyType({})
AnyPath: TypeAlias = CameraPath | PoseFolder
"""A camera path: a checked CameraPath, or a PoseFolder's poses as stored. Both have intrinsics and, for an action
model, optional W, A, S, D flags."""


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """The user's options for a causal run. None selects the continued state's value, or without a state the default.

    indices: the denoising steps of a few-step model, in a 1,000-step schedule.
    steps, guide_scale, solver: the schedule of a guided model.
    """

    frames: int
    chunk: int | None = None
    window: int | None = None
    sink: int | None = None
    indices: tuple[int, ...] | None = None
    shift: float | None = None
    steps: int = STEPS
    guide_scale: float = GUIDE_SCALE
    solver: SolverName = "unipc"


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """A checked plan of a causal run.

    frame: float32 [3, H, W], about -1 to 1, the video's first frame.
    geometry: the size of the video to generate, without the frames of `state`.
    state: the state to continue; None for a new video.
    """

    config: ModelConfig
    release: str
    frame: Tensor
    geometry: Geometry
    track: CameraTrack
    schedule: Schedule
    window: Window
    chunk: int
    state: WorldState | None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the latent."""
        return self.geometry.lat_h, self.geometry.lat_w

    @property
    def latent_frames_before(self) -> int:
        return 0 if self.state is None else self.state.latent.shape[2]

    @property
    def guided(self) -> bool:
        """Whether a negative prompt is used."""
        return self.schedule.guide_scale != 1

    @property
    def cache_window(self) -> Window:
        """The window of latent frames in the KV cache."""
        return self.window.in_cache(self.latent_frames_before + self.geometry.lat_f, self.chunk)

    @property
    def loop(self) -> ChunkLoop:
        return ChunkLoop(self.size, self.cache_window, self.chunk, self.schedule)

    def frames_until(self, latent_frames: int) -> int:
        """Return the number of video frames in this run's first `latent_frames` latent frames."""
        return max(0, 4 * latent_frames - (3 if self.state is None else 0))

    def chunks(
        self,
        image: Tensor,
        noise: Tensor,
        context: Tensor,
        negative: Tensor | None = None,
        *,
        later: Mapping[int, Tensor] = NO_OTHERS,
    ) -> Iterator[Chunk]:
        """Yield the inputs of each chunk: first the finished chunks of the saved state, if there is one, then this
        run's new chunks.

        image: [1, 16, n, h, w], the latent of the start image and grey frames; the last frame repeats if needed.
        noise: [1, 16, f, h, w], for new chunks.
        context, negative: [1, L, D], the prompt embeddings for new chunks.
        later: further prompt embeddings by the index of their first new chunk.
        """
        conditioning, track = chunk_conditioning(image, self.chunk), self.track
        if self.state is not None:
            yield from made_chunks(self.state, conditioning)
        for first in range(0, self.geometry.lat_f, self.chunk):
            part = slice(first, first + self.chunk)
            context = later.get(first // self.chunk, context)
            size = self.geometry.height, self.geometry.width
            flags = None if track.flags is None else track.flags[part]
            camera = _embed_camera(self.config, size, track.poses[part], track.lens[None], flags)
            yield Chunk(noise[:, :, part], next(conditioning), camera, context, negative)

    def state_after(self, latent: Tensor, *prompts: Prompt) -> WorldState:
        """Return the state after this run's first f latent frames, `latent` [1, 16, f, h, w]. `prompts` are this run's,
        in the order of use."""
        done, track, before = latent.shape[2], self.track, self.state
        left, used = done // self.chunk, []
        for number, prompt in enumerate(prompts, 1):
            chunks = left if number == len(prompts) else min(left, prompt.chunks)
            left -= chunks
            if chunks:
                used.append(replace(prompt, context=prompt.context.cpu(), chunks=chunks))
        parts: dict[str, Tensor | None] = {
            "latent": latent,
            "poses": torch.from_numpy(track.poses[:done].copy()),
            "lens": torch.from_numpy(np.tile(track.lens, (done, 1))),
            "flags": None if track.flags is None else torch.from_numpy(track.flags[:done].copy()),
        }
        if before is not None:
            parts = {
                name: None if new is None else torch.cat([getattr(before, name), new], dim=2 * (name == "latent"))
                for name, new in parts.items()
            }
        return WorldState(
            **parts,  # type: ignore[arg-type]
            frame=self.frame,
            last_pose=torch.from_numpy(track.world[done - 1].copy()),
            scale=track.scale,
            prompts=(*(() if before is None else before.prompts), *used),
            window=self.window,
            config=self.config,
            release=self.release,
            chunk=self.chunk,
        )


def made_chunks(state: WorldState, conditioning: Iterator[Tensor]) -> Iterator[Chunk]:
    """Yield the inputs of a saved video's finished chunks. For these chunks, ChunkLoop computes only the keys and
    values again. `conditioning` yields each chunk's mask and image latent, [1, 20, chunk, h, w]."""
    prompts, (height, width) = (prompt for prompt in state.prompts for _ in range(prompt.chunks)), state.frame.shape[1:]
    for number, prompt in enumerate(prompts):
        part = slice(number * state.chunk, (number + 1) * state.chunk)
        flags = None if state.flags is None else state.flags[part].numpy()
        poses, lens = state.poses[part].numpy(), state.lens[part].numpy()
        camera = _embed_camera(state.config, (height, width), poses, lens, flags)
        yield Chunk(state.latent[:, :, part], next(conditioning), camera, prompt.context, prompt.negative, made=True)


def _embed_camera(
    config: ModelConfig, size: tuple[int, int], poses: np.ndarray, lens: np.ndarray, flags: np.ndarray | None
) -> Tensor | None:
    return None if config.control is None else pose_embedding(poses, lens, height=size[0], width=size[1], flags=flags)


def plan_rollout(
    config: ModelConfig,
    release: Release,
    request: RolloutRequest,
    path: AnyPath | None = None,
    frame: Tensor | None = None,
    state: WorldState | None = None,
) -> RolloutSpec:
    """Return the checked plan of a causal run. Raises InputError for invalid options, CameraError for an unusable path.
    `frame`, float32 [3, H, W], about -1 to 1, is ignored if there is a `state`."""
    check_causal(config)
    shift = release.shift if request.shift is None else request.shift
    schedule: Schedule
    if release.guided:
        schedule = GuidedSchedule(request.steps, shift, request.guide_scale, request.solver)
        _ = schedule.timesteps  # raises InputError for invalid settings
    else:
        schedule = few_step_schedule(release.indices if request.indices is None else request.indices, shift)
    chunk = chunk_of(request.chunk, release, state)
    window = (release if state is None else state).window.changed(request.window, request.sink, chunk)
    if state is not None:
        state.check(config, request.chunk, schedule.guide_scale != 1)
        frame = state.frame
    if frame is None:
        raise InputError("`image` is missing: the video's first frame; or name a state to `continue_from`")
    height, width = frame.shape[1:]
    geometry = explicit_geometry(width, height, request.frames, None if path is None else len(path.c2w), chunk=chunk)
    if state is not None:
        geometry = replace(geometry, frames=4 * geometry.lat_f)
    track = _track(config, request.frames, chunk, path, state)
    notes = [*_notes(request.frames, geometry, chunk, path, state), *track.notes]
    if shift != release.shift:
        notes.insert(0, f"The shift is {shift:g}; {release.name} was made for {release.shift:g}.")
    if state is not None:
        notes += state.notes(release.name, window)
    return RolloutSpec(
        config=config,
        release=release.name,
        frame=frame,
        geometry=geometry,
        track=track,
        schedule=schedule,
        window=window,
        chunk=chunk,
        state=state,
        notes=tuple(notes),
    )


def chunk_of(requested: int | None, release: Release, state: WorldState | None) -> int:
    """Return the number of latent frames per chunk: the requested one, else the state's, else the release's. Raises
    InputError for an invalid request."""
    if requested is None:
        return release.chunk if state is None else state.chunk
    if requested not in CHUNKS:
        expected = f"{', '.join(map(str, CHUNKS[:-1]))} or {CHUNKS[-1]}"
        raise InputError(f"`chunk` {requested}: expected {expected} latent frames")
    return requested


def _track(config: ModelConfig, frames: int, chunk: int, path: AnyPath | None, state: WorldState | None) -> CameraTrack:
    c2w, lens, actions = (None, None, None) if path is None else (path.c2w, path.intrinsics[0], path.actions)
    actions = actions if config.control == 7 else None
    if config.control == 7 and path is not None and actions is None:
        raise InputError(
            "this model also takes the keys W, A, S, D, and the path has none: give an "
            "action.npy, or a path made of keys"
        )
    if state is None:
        track = begin_track(c2w, lens, frames, chunk, actions)
    else:
        lens, before = state.lens[-1].numpy() if lens is None else lens, state.last_pose.numpy()
        track = continue_track(c2w, lens, frames, chunk, before=before, scale=state.scale, actions=actions)
    if config.control == 7 and track.flags is None:
        return replace(track, flags=np.zeros((len(track.poses), 4)))
    return track


def _notes(requested: int, geometry: Geometry, chunk: int, path: AnyPath | None, state: WorldState | None) -> list[str]:
    notes = [] if path is not None else [STANDING_STILL]
    if geometry.frames != requested:
        starts = ", ".join(str(4 * chunk * count - 3) for count in (1, 2, 3))
        reason = f"Frames come in whole chunks, so {starts} and so on"
        if state is not None:
            reason = f"Frames come in chunks of {4 * chunk} if a video continues"
        if path is not None and len(path.c2w) < requested:
            reason = f"The camera path holds {len(path.c2w)} poses"
        notes.append(f"{reason}: the video has {geometry.frames} frames, not {requested}.")
    return notes
