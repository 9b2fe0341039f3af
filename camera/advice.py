"""Warnings and hints about a camera path, for the nodes and the command line."""

import numpy as np

from ..errors import CameraError
from .path import CameraPath
from .plucker import model_poses
from .pose_folder import PoseFolder
from .poses import LARGEST_FRACTION, LENS_HEIGHT, LENS_WIDTH, frame_count, lens_change
from .rotation import angle_deg

EVEN_SPEED = 0.02  # the largest difference of the shortest and longest step, relative to the longest
JUMP = 4.0  # in units of the median step
# the longest turn between latent frames in the official example paths is 28.7 degrees, 99 % are under 19
FASTEST_TURN_DEG = 30.0
OFF_CENTRE = 0.1  # the largest distance of the principal point from the image centre, as a fraction of the side
FIELDS_DEG = 5.0, 150.0  # the range of plausible horizontal fields of view


def warnings(path: CameraPath | PoseFolder, frames: int) -> list[str]:
    """Return warnings about a path's poses, motion and lens for a video of `frames` frames. The list may be empty."""
    c2w, lens = path.c2w, path.intrinsics
    try:
        used = frame_count(frames, len(c2w))
    except CameraError as error:
        return [str(error)]
    found, poses = [], len(c2w)
    if used < frame_count(frames):
        found.append(f"Shorter than the video: {poses} poses make {used} frames, not {frames}. Resample the path.")
    elif poses > used + 4:
        found.append(f"Only the first {used} of {poses} poses are used. Resample the path to see all of it.")
    found += motion_warnings(model_poses(c2w, frames))
    return found + lens_warnings(lens[0]) + lens_change(lens[:used])


def motion_warnings(poses: np.ndarray) -> list[str]:
    """Return warnings about jumps, fast turns, or a still camera. `poses` [f, 4, 4] are the model's input: each pose is
    relative to the one before."""
    steps, turns_deg = _motion(poses)
    if not len(steps):
        return []  # a video of one latent frame
    if not steps.any() and turns_deg.max() <= 1e-3:
        return ["The camera does not move: the model gets a standing camera."]
    return [warning for warning in (_jump(steps), _turn(turns_deg)) if warning]


def lens_warnings(lens: np.ndarray) -> list[str]:
    """Return one warning, in a list, if the lens is implausible for an 832x480 image. Otherwise return an empty list.
    `lens`: fx, fy, cx, cy in pixels of such an image."""
    fx, fy, cx, cy = lens
    middle = np.array([LENS_WIDTH, LENS_HEIGHT]) / 2
    if max(fx, fy, cx, cy) <= LARGEST_FRACTION:
        return [
            f"The lens {_numbers(lens)} seems to be in fractions of the image; expected pixels of an 832x480 image: "
            f"{_numbers(lens * np.tile(2 * middle, 2))}."
        ]
    if (np.abs(lens[2:] - middle) > OFF_CENTRE * 2 * middle).any():
        far = f"The lens's centre {_numbers(lens[2:])} is far from the middle of an 832x480 image"
        if cx < 1 or cy < 1:
            return [f"{far}, {_numbers(middle)}."]
        scaled = _numbers(lens * np.tile(middle / lens[2:], 2))
        return [f"{far}: its numbers are for {2 * cx:.0f}x{2 * cy:.0f}, it seems, and would be {scaled} at 832x480."]
    field_deg = np.rad2deg(2 * np.arctan(LENS_WIDTH / 2 / fx))
    if FIELDS_DEG[0] <= field_deg <= FIELDS_DEG[1]:
        return []
    return [
        f"The field of view is {field_deg:.3g} degrees, the official examples' is 79: expected fx in pixels of an "
        f"832x480 image, found {fx:g}."
    ]


def hints(path: CameraPath, frames: int) -> list[str]:
    """Return a hint, in a list, if the camera moves at constant speed. The hint says that this speed has no effect,
    because the model sees only relative step lengths. Otherwise return []. `frames`: the number of video frames."""
    try:
        steps, _ = motion(path, frames)
    except CameraError:
        return []
    if len(steps) < 2 or not steps.any() or 1 - steps.min() > EVEN_SPEED:
        return []
    return [
        "Even speed: steps are divided by the longest one, so the distance cancels. A slow and a fast move are the "
        "same input."
    ]


def motion(path: CameraPath, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the camera's translation lengths and rotation angles between consecutive latent frames, each [f - 1].
    Lengths are divided by the longest; angles are in degrees. `frames`: the number of video frames. Raise CameraError
    for too few poses."""
    return _motion(model_poses(path.c2w, frames))


def _motion(poses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen = poses[1:] if np.array_equal(poses[0], np.eye(4)) else poses
    return np.linalg.norm(seen[:, :3, 3], axis=1), angle_deg(seen[:, :3, :3])


def _jump(steps: np.ndarray) -> str:
    usual, longest = np.median(steps), steps.max()
    if len(steps) < 3 or not longest or usual * JUMP >= longest:
        return ""
    frame = int(steps.argmax()) * 4
    times = f"{longest / usual:.0f} times the usual step" if usual > 1e-3 * longest else "all of the movement"
    return f"Jump between frames {frame} and {frame + 4}: {times}. Next to this step the rest of the path hardly moves."


def _turn(turns_deg: np.ndarray) -> str:
    if turns_deg.max() <= FASTEST_TURN_DEG:
        return ""
    frame = int(turns_deg.argmax()) * 4
    return (
        f"Fast turn: {turns_deg.max():.0f} degrees between frames {frame} and {frame + 4}; the official paths stay "
        f"below {FASTEST_TURN_DEG:.0f}. Use more frames or turn less."
    )


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
