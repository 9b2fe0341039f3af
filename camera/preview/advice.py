"""What a user should know of a path before the model gets it, in plain words."""

import numpy as np

from ...errors import CameraError
from ..path import CameraPath
from ..plucker import model_poses
from ..poses import frame_count, lens_change
from ..rotation import angle_deg

EVEN_SPEED = 0.02  # shortest and longest step this close to each other, relative to the longest
JUMP = 4.0  # times the usual step
# the longest turn between latent frames in the official example paths is 28.7 degrees, 99 % are under 19
FASTEST_TURN_DEG = 30.0


def warnings(path: CameraPath, frames: int) -> list[str]:
    """What of `path` the model will not follow as asked in a video of `frames` frames, a sentence each; often none."""
    try:
        used = frame_count(frames, len(path))
    except CameraError as error:
        return [str(error)]
    steps, turns_deg = motion(path, frames)
    said = [_length(path, frames, used), _standing(steps, turns_deg), _jump(steps), _turn(turns_deg)]
    return [words for words in said if words] + lens_change(path.intrinsics[:used])


def hints(path: CameraPath, frames: int) -> list[str]:
    """What is good to know of a path that the model follows, a sentence each; none of one that cannot be used."""
    try:
        steps, _ = motion(path, frames)
    except CameraError:
        return []
    if len(steps) < 2 or not steps.any() or 1 - steps.min() > EVEN_SPEED:
        return []
    return [
        "Even speed: steps are measured against the longest one, so how far the camera goes cancels. "
        "A slow and a fast move are the same input."
    ]


def motion(path: CameraPath, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Step (the longest is 1) and turn in degrees from each latent frame to the next."""
    seen = model_poses(path.c2w, frames)[1:]
    return np.linalg.norm(seen[:, :3, 3], axis=1), angle_deg(seen[:, :3, :3])


def _length(path: CameraPath, frames: int, used: int) -> str:
    if used < frame_count(frames):
        return f"Shorter than the video: {len(path)} poses make {used} frames, not {frames}. Resample the path."
    if len(path) > used + 4:
        return f"Only the first {used} of {len(path)} poses are used. Resample the path to see all of it."
    return ""


def _standing(steps: np.ndarray, turns_deg: np.ndarray) -> str:
    if steps.any() or turns_deg.max() > 1e-3:
        return ""
    return "The camera does not move: the model gets a standing camera."


def _jump(steps: np.ndarray) -> str:
    usual = np.median(steps)
    if len(steps) < 3 or not steps.any() or usual * JUMP >= 1:
        return ""
    frame = int(steps.argmax()) * 4
    times = f"{1 / usual:.0f} times the usual step" if usual > 1e-3 else "all of the movement"
    return f"Jump between frames {frame} and {frame + 4}: {times}. Beside it the rest of the path hardly moves."


def _turn(turns_deg: np.ndarray) -> str:
    if turns_deg.max() <= FASTEST_TURN_DEG:
        return ""
    frame = int(turns_deg.argmax()) * 4
    return (
        f"Fast turn: {turns_deg.max():.0f} degrees between frames {frame} and {frame + 4}; the official paths stay "
        f"below {FASTEST_TURN_DEG:.0f}. Use more frames or turn less."
    )
