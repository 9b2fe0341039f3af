"""What a user should know of a path before the model gets it, in plain words."""

import numpy as np

from ...errors import CameraError
from ..path import CameraPath
from ..plucker import framewise_relative, latent_poses, model_poses
from ..poses import frame_count
from ..rotation import angle_deg

EVEN_SPEED = 0.02  # shortest and longest step this close to each other, relative to the longest
JUMP = 4.0  # times the usual step
# the longest turn between latent frames in the official example paths is 28.7 degrees, 99 % are under 19
FASTEST_TURN_DEG = 30.0


def warnings(path: CameraPath, frames: int) -> list[str]:
    """Everything about `path` that the model will not follow as asked, for a video of `frames` frames; often empty."""
    try:
        used = frame_count(frames, len(path))
    except CameraError as error:
        return [str(error)]
    sampled = latent_poses(path.c2w, frames)
    seen = model_poses(path.c2w, frames)
    steps = np.linalg.norm(seen[1:, :3, 3], axis=1)
    turns = angle_deg(framewise_relative(sampled)[1:, :3, :3])
    said = [_length(path, frames, used), _motion(steps, turns), _jump(steps), _turn(turns), _lens(path, used)]
    return [words for words in said if words]


def _length(path: CameraPath, frames: int, used: int) -> str:
    if used < frame_count(frames):
        return f"Shorter than the video: {len(path)} poses make {used} frames, not {frames}. Resample the path."
    if len(path) > used + 4:
        return f"Only the first {used} of {len(path)} poses are used. Resample the path to see all of it."
    return ""


def _motion(steps: np.ndarray, turns: np.ndarray) -> str:
    if not steps.any():
        return "" if turns.max() > 1e-3 else "The camera does not move: the model gets a standing camera."
    if len(steps) > 1 and 1 - steps.min() <= EVEN_SPEED:
        return (
            "Even speed: steps are measured against the longest one, so how far the camera goes cancels. "
            "A slow and a fast move are the same input."
        )
    return ""


def _jump(steps: np.ndarray) -> str:
    usual = np.median(steps)
    if len(steps) < 3 or not steps.any() or usual * JUMP >= 1:
        return ""
    frame = int(steps.argmax()) * 4
    times = f"{1 / usual:.0f} times the usual step" if usual > 1e-3 else "all of the movement"
    return f"Jump between frames {frame} and {frame + 4}: {times}. Beside it the rest of the path hardly moves."


def _turn(turns: np.ndarray) -> str:
    if turns.max() <= FASTEST_TURN_DEG:
        return ""
    frame = int(turns.argmax()) * 4
    return (
        f"Fast turn: {turns.max():.0f} degrees between frames {frame} and {frame + 4}; the official paths stay below "
        f"{FASTEST_TURN_DEG:.0f}. Use more frames or turn less."
    )


def _lens(path: CameraPath, used: int) -> str:
    lens = path.intrinsics[:used]
    change = float(np.abs(lens / lens[0] - 1)[:, :2].max())
    return f"The lens changes by {change:.0%} on the way; only the first frame's lens is used." if change > 0.01 else ""


def motion_table(path: CameraPath, frames: int) -> list[tuple[int, int, float, float]]:
    """From frame, to frame, step (longest is 1) and turn in degrees for each latent frame after the first."""
    seen = model_poses(path.c2w, frames)[1:]
    steps, turns = np.linalg.norm(seen[:, :3, 3], axis=1), angle_deg(seen[:, :3, :3])
    starts = range(0, 4 * len(seen), 4)
    return [(start, start + 4, *map(float, row)) for start, *row in zip(starts, steps, turns, strict=True)]
