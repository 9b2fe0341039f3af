"""A run of a causal model (LingBot-World Fast, 2.0) that can start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..camera import continued_poses, latent_poses, longest_step, model_poses
from ..camera.path import lens_from_fov
from ..camera.pose_folder import PoseFolder
from ..errors import CameraError, InputError
from ..geometry import CHUNK, Geometry, explicit_geometry, first_frame
from ..loaders import Checkpoint
from ..sampling import FAST_INDICES, V2_INDICES, FewStepSchedule, few_step_schedule
from ..state import WorldState, load_state
from .checks import Plan, frame_notes, geometry_of, pose_folder, refuse_options
from .options import BASE_ONLY, GenerateOptions

CAUSAL_SHIFT = 10.0
STANDING_STILL = "There is no `action_path`: the camera stands still."


@dataclass(frozen=True)
class Release:
    """What a release of the causal model was made for; `window` and `sink` in latent frames, 0 is the whole video."""

    name: str
    indices: tuple[int, ...]
    window: int
    sink: int
    licence: str


RELEASES = {
    "v1": Release("LingBot-World Fast", FAST_INDICES, 0, 0, "Apache-2.0"),
    "v2": Release("LingBot-World 2.0", V2_INDICES, 18, 6, "CC BY-NC-SA 4.0, for non-commercial use"),
}


@dataclass(frozen=True)
class CameraTrack:
    """A camera over the latent frames of a run: `poses` [f, 4, 4] as the model is given them, `lens` [4] at 832x480,
    `world` [f, 4, 4] the same poses in the path's own world, and the length that translations were divided by."""

    poses: np.ndarray
    lens: np.ndarray
    world: np.ndarray
    scale: float


@dataclass(frozen=True, kw_only=True)
class RolloutPlan(Plan):
    """A run of a causal model. `window` and `sink` count latent frames, a window of 0 is the whole video; `state` is
    what the run goes on from."""

    checkpoint: Checkpoint
    track: CameraTrack
    schedule: FewStepSchedule
    window: int
    sink: int
    state: WorldState | None

    @property
    def held_frames(self) -> int:
        """Latent frames whose keys and values are held at once."""
        whole = self.made_frames + self.geometry.lat_f
        return min(self.window, whole) if self.window else whole

    @property
    def made_frames(self) -> int:
        """Latent frames of the state that the run goes on from."""
        return 0 if self.state is None else self.state.latent.shape[2]


def plan_rollout(
    options: GenerateOptions, checkpoint: Checkpoint, image: np.ndarray | None, opened: dict[str, Any]
) -> RolloutPlan:
    """Checks what is asked of a causal model. Raises a LingBotError."""
    refuse_options(options, BASE_ONLY, "a causal model takes a few unguided steps a chunk, and is one model")
    if checkpoint.config.control == 7:
        raise CameraError(f"{checkpoint.path}: a causal model that takes actions; only those that take a camera work")
    release = RELEASES[release_of(checkpoint)]
    state = None if options.continue_from is None else load_state(options.continue_from)
    window = release.window if options.window is None else options.window
    sink = release.sink if options.sink is None else options.sink
    if state is not None:
        state.check(checkpoint.config, options.window, options.sink)
        window, sink = state.window, state.sink
    _check_window(window, sink)
    folder = None if options.action_path is None else pose_folder(Path(options.action_path), checkpoint)
    geometry, frame = _geometry_and_frame(options, image, folder, state)
    shift = CAUSAL_SHIFT if options.shift is None else options.shift
    named = f"{release.name} ({release.licence}): {checkpoint.name}"
    return RolloutPlan(
        **opened,
        checkpoint=checkpoint,
        frame=frame,
        geometry=geometry,
        track=_track(options, folder, geometry, state),
        schedule=few_step_schedule(_indices(options.schedule, release), shift),
        window=window,
        sink=sink,
        state=state,
        notes=(named, *_notes(options, geometry, folder, state)),
    )


def release_of(checkpoint: Checkpoint) -> str:
    """The key of RELEASES. The files of both are alike: 2.0 is told by the name of its folder, or of the folder that it
    was quantized from."""
    names = " ".join([*checkpoint.path.parts[-3:], checkpoint.source]).lower()
    return "v2" if "v2" in names else "v1"


def _check_window(window: int, sink: int) -> None:
    if sink < 0 or window < 0 or (window and window < sink + CHUNK):
        raise InputError(f"`window` {window} and `sink` {sink}: a window holds its sink and a chunk of {CHUNK} latent "
                         f"frames, so at least {max(sink, 0) + CHUNK}, or 0 for the whole video")  # fmt: skip


def _indices(schedule: str | tuple[int, ...] | None, release: Release) -> tuple[int, ...]:
    if schedule is None:
        return release.indices
    if isinstance(schedule, tuple):
        return schedule
    if schedule in RELEASES:
        return RELEASES[schedule].indices
    try:
        return tuple(int(index) for index in schedule.split(","))
    except ValueError:
        raise InputError(f"`schedule` {schedule}: expected v1, v2 or indices such as 0,250,500,750") from None


def _geometry_and_frame(
    options: GenerateOptions, image: np.ndarray | None, folder: PoseFolder | None, state: WorldState | None
) -> tuple[Geometry, Tensor]:
    n_poses = None if folder is None else len(folder.c2w)
    if state is None:
        if image is None:
            raise InputError("`image` is missing: the video's first frame; or name a state to `continue_from`")
        geometry = geometry_of(options, image, n_poses, CHUNK)
        return geometry, first_frame(image, geometry)
    height, width = state.frame.shape[1:]
    if (options.width, options.height) not in ((None, None), (width, height)):
        raise InputError(f"`width` and `height`: the state is of {width}x{height}; leave them out")
    geometry = explicit_geometry(width, height, options.frame_num, n_poses, chunk=CHUNK)
    return replace(geometry, frames=4 * geometry.lat_f), state.frame


def _track(
    options: GenerateOptions, folder: PoseFolder | None, geometry: Geometry, state: WorldState | None
) -> CameraTrack:
    """The path over a new video's latent frames, or over those that go on from a state."""
    if folder is None:
        lens = lens_from_fov() if state is None else state.lens[-1].numpy()
        folder = PoseFolder(np.tile(np.eye(4), (max(5, options.frame_num), 1, 1)), np.atleast_2d(lens), None, ())
    lens = folder.intrinsics[0]
    if state is not None:
        before = state.last_pose.numpy()
        poses, world = continued_poses(folder.c2w, geometry.lat_f, before=before, scale=state.scale)
        return CameraTrack(poses, lens, world, state.scale)
    frames = options.frame_num
    scale = longest_step(folder.c2w, frames=frames, chunk=CHUNK)
    return CameraTrack(model_poses(folder.c2w, frames, CHUNK), lens, latent_poses(folder.c2w, frames, CHUNK), scale)


def _notes(
    options: GenerateOptions, geometry: Geometry, folder: PoseFolder | None, state: WorldState | None
) -> tuple[str, ...]:
    notes = () if folder is not None else (STANDING_STILL,)
    if state is None:
        return (*notes, *frame_notes(options, geometry, folder))
    made = 4 * state.latent.shape[2] - 3
    after = f"{options.continue_from} holds {made} frames; this video has the {geometry.frames} that follow."
    return (*notes, *(() if folder is None else folder.notes), after)


