"""A run of a causal model (LingBot-World Fast, 2.0) that can start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..camera import CameraTrack, begin_track
from ..camera.pose_folder import PoseFolder
from ..errors import CameraError, InputError
from ..loaders import Checkpoint
from ..options import CHUNK
from ..pipeline.geometry import Geometry, explicit_geometry, first_frame
from ..pipeline.state import WorldState, load_state
from ..pipeline.world import chosen_window, held_frames
from ..sampling import FewStepSchedule, chosen_shift, few_step_schedule, step_indices
from .checks import Plan, arithmetic_notes, frame_notes, geometry_of, lora_notes, pose_folder, refuse_options
from .options import BASE_ONLY, GenerateOptions
from .video import Target, check_folder

STANDING_STILL = "There is no `action_path`: the camera stands still."
FEWEST_FRAMES = 4 * CHUNK - 3
NEW_CHUNKS, LATER_CHUNKS = "whole chunks, so 9, 21, 33 and so on", "chunks of 12 where a video goes on"


@dataclass(frozen=True, kw_only=True)
class RolloutPlan(Plan):
    """A run of a causal model, of the `release` of that name. `window` and `sink` count latent frames, a window of 0 is
    the whole video; `state` is what the run goes on from."""

    checkpoint: Checkpoint
    track: CameraTrack
    schedule: FewStepSchedule
    window: int
    sink: int
    state: WorldState | None
    release: str

    @property
    def held_frames(self) -> int:
        """Latent frames whose keys and values are held at once."""
        return self._held[0]

    @property
    def held_sink(self) -> int:
        """Of them, the video's first ones, which stay for good."""
        return self._held[1]

    @property
    def _held(self) -> tuple[int, int]:
        return held_frames(self.window, self.sink, self.made_frames + self.geometry.lat_f)

    @property
    def made_frames(self) -> int:
        """Latent frames of the state that the run goes on from."""
        return 0 if self.state is None else self.state.latent.shape[2]

    @property
    def frames_before(self) -> int:
        """Frames of the state. PNG files go on with this number, so that a folder may hold the whole video."""
        return 0 if self.state is None else self.state.frames


def plan_rollout(
    options: GenerateOptions, checkpoint: Checkpoint, image: np.ndarray | None, opened: dict[str, Any]
) -> RolloutPlan:
    """Checks what is asked of a causal model. Raises a LingBotError."""
    refuse_options(options, BASE_ONLY, "a causal model takes a few unguided steps a chunk, and is one model")
    if checkpoint.config.control == 7:
        raise CameraError(f"{checkpoint.path}: a causal model that takes actions; only those that take a camera work")
    arithmetic = arithmetic_notes(options, opened["device"], checkpoint)
    release = checkpoint.release
    assert release is not None  # a causal model has one
    state = None if options.continue_from is None else load_state(options.continue_from)
    window, sink = chosen_window(options.window, options.sink, state or release)
    if state is not None:
        state.check(checkpoint.config)
    if options.save_state is not None:
        _check_saved(Path(options.save_state), opened["target"])
    folder = None if options.action_path is None else _pose_folder(Path(options.action_path), checkpoint)
    geometry, frame = _geometry_and_frame(options, image, folder, state)
    track = _track(options, folder, state)
    shift, shift_notes = chosen_shift(options.shift, release)
    told = _notes(options, geometry, folder, track, state)
    if state is not None:
        told += state.notes(release.name, window, sink)
    return RolloutPlan(
        **opened,
        checkpoint=checkpoint,
        frame=frame,
        geometry=geometry,
        track=track,
        schedule=few_step_schedule(step_indices(options.schedule, release), shift),
        window=window,
        sink=sink,
        state=state,
        release=release.name,
        notes=(*checkpoint.release_lines, *shift_notes, *lora_notes(options), *arithmetic, *told),
    )


def _check_saved(path: Path, target: Target) -> None:
    """Raises InputError for a state that could not be written when the video is done, or would replace the video."""
    if path.is_dir():
        raise InputError(f"`save_state` {path} is a folder; name a file in it")
    if path.absolute() == target.path.absolute():
        raise InputError(f"`save_state` {path} is the video's file; give the state its own")
    check_folder("save_state", path, path.parent)


def _pose_folder(path: Path, checkpoint: Checkpoint) -> PoseFolder:
    """The camera of a folder. Raises CameraError for one with fewer poses than a chunk has frames."""
    folder = pose_folder(path, checkpoint)
    if len(folder.c2w) < FEWEST_FRAMES:
        raise CameraError(f"`action_path` {path}: {len(folder.c2w)} poses; a causal model needs at least "
                          f"{FEWEST_FRAMES}, a chunk of {CHUNK} latent frames")  # fmt: skip
    return folder


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


def _track(options: GenerateOptions, folder: PoseFolder | None, state: WorldState | None) -> CameraTrack:
    """The path over a new video's latent frames, or over those that go on from a state."""
    c2w, lens = (None, None) if folder is None else (folder.c2w, folder.intrinsics[0])
    if state is None:
        return begin_track(c2w, lens, options.frame_num, CHUNK)
    return state.continue_track(c2w, lens, options.frame_num)


def _notes(
    options: GenerateOptions, geometry: Geometry, folder: PoseFolder | None, track: CameraTrack,
    state: WorldState | None,
) -> tuple[str, ...]:  # fmt: skip
    steps = NEW_CHUNKS if state is None else LATER_CHUNKS
    notes = *(() if folder is not None else (STANDING_STILL,)), *frame_notes(options, geometry, folder, steps)
    notes = *notes, *track.notes
    if state is None:
        return notes
    after = f"{options.continue_from} holds {state.frames} frames; this video has the {geometry.frames} that follow."
    if options.image is not None:
        after += " `image` is not needed: the size and what was made stay."
    return (*notes, after)
