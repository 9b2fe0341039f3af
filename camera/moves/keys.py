"""Camera keys: `w a s d` walk in the ground plane, `i j k l` look up, left, down, right.

A script is a list such as "w-10,iw-15,none-10": keys held together and for how many frames. Equal to the official
act2cam: 0.05 units and 2 degrees a frame, pitch kept within 85 degrees.
"""

import re

import numpy as np

from ...errors import CameraError
from ..path import DEFAULT_FOV_DEG, CameraPath, lens_from_fov
from ..rotation import about

MOVE_KEYS, LOOK_KEYS = "wasd", "ijkl"
STEP, TURN_DEG, PITCH_LIMIT_DEG = 0.05, 2.0, 85.0
MOST_FRAMES = 100_000
SEGMENT = re.compile(r"(none|[wasdijkl]+)-(\d{1,6})")


def held_keys(script: str) -> np.ndarray:
    """Which of w a s d i j k l is down in each frame: bool [frames, 8], padded with idle frames to 4n+1 (5 at least).

    Raises CameraError that quotes the part it cannot read.
    """
    rows = [row for part in script.lower().split(",") for row in _segment(part.strip(), script)]
    if not 0 < len(rows) <= MOST_FRAMES:
        raise CameraError(f"key script {script[:60]!r}: {len(rows)} frames, expected 1 to {MOST_FRAMES}")
    frames = max(5, -(-(len(rows) - 1) // 4) * 4 + 1)
    return np.array(rows + [[False] * 8] * (frames - len(rows)), dtype=bool)


def actions_from_keys(script: str) -> np.ndarray:
    """W, A, S, D flags for an action checkpoint: float32 [frames, 4], one row a frame of the script."""
    return held_keys(script)[:, :4].astype(np.float32)


def poses_from_keys(script: str, *, step: float = STEP, turn_deg: float = TURN_DEG) -> np.ndarray:
    """Camera-to-world poses float64 [frames + 1, 4, 4] of a key script; the first is the identity.

    `step` in world units and `turn_deg` in degrees a frame. A pitch step that would cross 85 degrees is dropped.
    """
    keys = held_keys(script).astype(np.float64)
    poses = np.tile(np.eye(4), (len(keys) + 1, 1, 1))
    pitch_deg = 0.0
    for index, (w, a, s, d, i, j, k, l) in enumerate(keys):  # noqa: E741
        tilt_deg = (i - k) * turn_deg
        if abs(pitch_deg + tilt_deg) > PITCH_LIMIT_DEG:
            tilt_deg = 0.0
        pitch_deg += tilt_deg
        rotation = about("y", (l - j) * turn_deg) @ poses[index, :3, :3] @ about("x", tilt_deg)
        walk = (w - s) * _on_ground(rotation[:, 2]) + (d - a) * _on_ground(rotation[:, 0])
        poses[index + 1, :3, :3] = rotation
        poses[index + 1, :3, 3] = poses[index, :3, 3] + step * walk
    return poses


def path_from_keys(
    script: str, *, fov_deg: float = DEFAULT_FOV_DEG, step: float = STEP, turn_deg: float = TURN_DEG
) -> CameraPath:
    """The path of a key script with its actions, one pose a frame.

    The poses after each frame are spread over the frames the way the official pipeline does, so that every fourth is
    at the official time.
    """
    actions = actions_from_keys(script)
    poses = poses_from_keys(script, step=step, turn_deg=turn_deg)
    held = np.concatenate([actions, actions[-1:]])
    return CameraPath(poses, lens_from_fov(fov_deg), actions=held).resampled(len(actions))


def _segment(part: str, script: str) -> list[list[bool]]:
    match = SEGMENT.fullmatch(part)
    if not match:
        raise CameraError(
            f"key script {script[:60]!r}: cannot read {part[:40]!r}; expected keys of wasdijkl or none, a dash and a "
            "number of frames, such as w-10,iw-15,none-10"
        )
    keys, count = match.group(1), min(int(match.group(2)), MOST_FRAMES + 1)
    held = "" if keys == "none" else keys
    return [[key in held for key in MOVE_KEYS + LOOK_KEYS]] * count


def _on_ground(axis: np.ndarray) -> np.ndarray:
    flat = axis * [1, 0, 1]
    return flat / (np.linalg.norm(flat) + 1e-6)
