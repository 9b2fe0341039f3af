"""A camera over the latent frames of a causal model's run, which begins a video or goes on from one."""

from dataclasses import dataclass

import numpy as np

from .advice import lens_warnings, motion_warnings
from .path import lens_from_fov
from .plucker import continued_poses, latent_poses, latent_times, longest_step, longest_step_after, model_poses
from .poses import FEWEST_POSES, frame_count

FRAMES_OF_ONE = 4  # frames of a latent frame: fewer poses that are left over are no step
LONGEST_KNOWN = 1.05  # of a first path the longest step is 1; a little more comes of where frames lie on a path


@dataclass(frozen=True)
class CameraTrack:
    """A camera over the latent frames of a run: `poses` [f, 4, 4] as the model is given them, `lens` [4] at 832x480,
    `world` [f, 4, 4] the same poses in the path's own world, and the `scale`, the length that translations were divided
    by: 0 as long as the camera has not moved. The run follows the first `used` of a path's `given` poses; without a
    path both are 0. `flags` [f, 4]: the keys W, A, S, D of an action model's latent frames."""

    poses: np.ndarray
    lens: np.ndarray
    world: np.ndarray
    scale: float
    used: int = 0
    given: int = 0
    flags: np.ndarray | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the path: poses that are left over, steps that the model does
        not know, and what else it will not follow."""
        notes = []
        if self.given >= self.used + FRAMES_OF_ONE:
            notes.append(
                f"The first {self.used} of the camera path's {self.given} poses are used; a run that goes on "
                "begins with the first pose of the path that it is given."
            )
        longest = float(np.linalg.norm(self.poses[:, :3, 3], axis=1).max())
        if longest > LONGEST_KNOWN:
            times = f"{longest:.3g}" if longest < 1000 else f"{longest:,.0f}"
            notes.append(
                f"The camera's longest step is {times} times that of the video's first path, and the model "
                "knows none that is longer. A path that goes on is in the first one's units: divide its "
                f"translations by {times}, or go as far in more frames."
            )
        said = [*motion_warnings(self.poses), *lens_warnings(self.lens)] if self.given else []
        return *notes, *said


def standing_still(frames: int) -> np.ndarray:
    """Poses [n, 4, 4] of a camera that does not move."""
    return np.tile(np.eye(4), (max(FEWEST_POSES, frames), 1, 1))


def begin_track(
    c2w: np.ndarray | None, lens: np.ndarray | None, frames: int, chunk: int, actions: np.ndarray | None = None
) -> CameraTrack:
    """The path [n, 4, 4] over the latent frames of a new video of `frames` frames; None stands still. `lens` [4], None
    is the official examples'. `actions` [n, 4]: an action model's, those of a path's nearest poses. Raises CameraError.
    """
    given = 0 if c2w is None else len(c2w)
    c2w = standing_still(frames) if c2w is None else c2w
    lens = lens_from_fov() if lens is None else lens
    scale, used = longest_step(c2w, frames=frames, chunk=chunk), frame_count(frames, len(c2w)) if given else 0
    poses, world = model_poses(c2w, frames, chunk), latent_poses(c2w, frames, chunk)
    flags = None if actions is None else _at(actions, latent_times(len(c2w), frames, chunk))
    return CameraTrack(poses, lens, world, scale, used, given, flags)


def _at(actions: np.ndarray, times: np.ndarray) -> np.ndarray:
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
    """The first `frames` poses of a path over latent frames that go on from the pose `before`; see `continued_poses`.
    The first path that moves sets the scale. Raises CameraError."""
    given = 0 if c2w is None else len(c2w)
    c2w = standing_still(frames) if c2w is None else c2w
    latent_frames = (frame_count(frames, len(c2w), chunk) - 1) // 4 + 1
    poses, world = continued_poses(c2w[:frames], latent_frames, before=before, scale=scale)
    scale = scale or longest_step_after(before, world)
    used = min(frames, len(c2w))
    flags = None if actions is None else _at(actions, np.linspace(0, used - 1, latent_frames + 1)[1:])
    return CameraTrack(poses, lens, world, scale, min(frames, given), given, flags)
