"""A camera over the latent frames of a causal model's run, which begins a video or goes on from one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .path import lens_from_fov
from .plucker import continued_poses, latent_poses, longest_step, longest_step_after, model_poses
from .poses import FEWEST_POSES, frame_count


@dataclass(frozen=True)
class CameraTrack:
    """A camera over the latent frames of a run: `poses` [f, 4, 4] as the model is given them, `lens` [4] at 832x480,
    `world` [f, 4, 4] the same poses in the path's own world, and the length that translations were divided by, 0 if none has moved yet."""

    poses: np.ndarray
    lens: np.ndarray
    world: np.ndarray
    scale: float


def standing_still(frames: int) -> np.ndarray:
    """Poses [n, 4, 4] of a camera that does not move."""
    return np.tile(np.eye(4), (max(FEWEST_POSES, frames), 1, 1))


def begin_track(c2w: np.ndarray | None, lens: np.ndarray | None, frames: int, chunk: int) -> CameraTrack:
    """The path [n, 4, 4] over the latent frames of a new video of `frames` frames; None stands still. `lens` [4], None
    is the official examples'. Raises CameraError."""
    c2w = standing_still(frames) if c2w is None else c2w
    lens = lens_from_fov() if lens is None else lens
    scale = longest_step(c2w, frames=frames, chunk=chunk)
    return CameraTrack(model_poses(c2w, frames, chunk), lens, latent_poses(c2w, frames, chunk), scale)


def continue_track(
    c2w: np.ndarray | None, lens: np.ndarray, frames: int, chunk: int, *, before: np.ndarray, scale: float
) -> CameraTrack:
    """The first `frames` poses of a path over latent frames that go on from the pose `before`; see `continued_poses`.
    The first path that moves sets the scale. Raises CameraError."""
    c2w = standing_still(frames) if c2w is None else c2w
    latent_frames = (frame_count(frames, len(c2w), chunk) - 1) // 4 + 1
    poses, world = continued_poses(c2w[:frames], latent_frames, before=before, scale=scale)
    return CameraTrack(poses, lens, world, scale or longest_step_after(before, world))
