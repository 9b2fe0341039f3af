"""The camera of a causal model's run, which begins or continues a video."""

from dataclasses import dataclass

import numpy as np

from .advice import lens_warnings, motion_warnings
from .path import lens_from_fov
from .plucker import continued_poses, latent_poses, latent_times, longest_step, longest_step_after, model_poses
from .poses import FEWEST_POSES, frame_count

FRAMES_PER_LATENT = 4
"""The number of video frames for each latent frame after the first."""
LONGEST_STEP = 1.05
"""The translation between latent frames, in the model's input, above which the user is warned. Translations are
relative to the longest of the video's first path; resampling may exceed 1 slightly."""


@dataclass(frozen=True)
class CameraTrack:
    """The camera for the f latent frames of a run, in float64.

    poses: [f, 4, 4], the model's input, from `model_poses`.
    lens: [4], fx, fy, cx, cy in pixels of an 832x480 image.
    world: [f, 4, 4], camera-to-world, in world units.
    scale: the divisor of translations in `poses`; 0 if the camera has not moved yet (no division).
    used_poses: how many poses of the path are used.
    path_poses: the path's number of poses, 0 without a path.
    flags: [f, 4], W, A, S, D flags.
    """

    poses: np.ndarray
    lens: np.ndarray
    world: np.ndarray
    scale: float
    used_poses: int = 0
    path_poses: int = 0
    flags: np.ndarray | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user about unused poses, an implausible lens, and motion that the model cannot follow."""
        notes = []
        if self.path_poses >= self.used_poses + FRAMES_PER_LATENT:
            notes.append(
                f"The first {self.used_poses} of the camera path's {self.path_poses} poses are used; a continued "
                "run begins with the first pose of its own path."
            )
        longest = float(np.linalg.norm(self.poses[:, :3, 3], axis=1).max())
        if longest > LONGEST_STEP:
            times = f"{longest:.3g}" if longest < 1000 else f"{longest:,.0f}"
            notes.append(
                f"The camera's longest step is {times} times that of the video's first path, and the model knows no "
                f"longer step. The units of this path are those of the first one: divide its translations by "
                f"{times}, or use more frames."
            )
        if self.path_poses:
            notes += [*motion_warnings(self.poses), *lens_warnings(self.lens)]
        return tuple(notes)


def still_poses(frames: int) -> np.ndarray:
    """Return identity poses [n, 4, 4] for a still camera, one per video frame but at least FEWEST_POSES."""
    return np.tile(np.eye(4), (max(FEWEST_POSES, frames), 1, 1))


def begin_track(
    c2w: np.ndarray | None, lens: np.ndarray | None, frames: int, chunk: int, actions: np.ndarray | None = None
) -> CameraTrack:
    """Return the camera of a new video. Raise CameraError for too few poses.

    c2w: [n, 4, 4], or None for a still camera.
    lens: [4]; None for the lens of the official examples.
    frames: the maximum number of video frames, rounded down to full chunks.
    chunk: the number of latent frames generated together.
    actions: [n, 4], W, A, S, D flags.
    """
    path_poses = 0 if c2w is None else len(c2w)
    c2w = still_poses(frames) if c2w is None else c2w
    lens = lens_from_fov() if lens is None else lens
    scale, used = longest_step(c2w, frames=frames, chunk=chunk), frame_count(frames, len(c2w)) if path_poses else 0
    poses, world = model_poses(c2w, frames, chunk), latent_poses(c2w, frames, chunk)
    flags = None if actions is None else _nearest_actions(actions, latent_times(len(c2w), frames, chunk))
    return CameraTrack(poses, lens, world, scale, used, path_poses, flags)


def _nearest_actions(actions: np.ndarray, times: np.ndarray) -> np.ndarray:
    return actions[np.minimum(np.rint(times).astype(int), len(actions) - 1)].astype(np.float64)


def continue_track(
    c2w: np.ndarray | None,
    lens: np.ndarray,
    frames: int,
    chunk: int,
    *,
    before: np.ndarray,
    scale: float,
    actions: np.ndarray | None = None,
) -> CameraTrack:
    """Return the camera of a run that continues a video. The path `c2w` is moved to begin at `before` [4, 4], the
    video's last pose. `scale`: the video's `CameraTrack.scale`. Other arguments: see `begin_track`."""
    path_poses = 0 if c2w is None else len(c2w)
    c2w = still_poses(frames) if c2w is None else c2w
    latent_frames = (frame_count(frames, len(c2w), chunk) - 1) // 4 + 1
    poses, world = continued_poses(c2w[:frames], latent_frames, before=before, scale=scale or None)
    scale = scale or longest_step_after(before, world)
    used = min(frames, len(c2w))
    flags = None if actions is None else _nearest_actions(actions, np.linspace(0, used - 1, latent_frames + 1)[1:])
    return CameraTrack(poses, lens, world, scale, min(frames, path_poses), path_poses, flags)
