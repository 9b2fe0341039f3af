"""Camera paths from key scripts: w a s d move in the ground plane, i j k l look around."""

import re

import numpy as np

from ...errors import CameraError
from ..path import DEFAULT_FOV_DEG, MOST_FRAMES, CameraPath, lens_from_fov
from ..rotation import from_angles, rigid

MOVE_KEYS, LOOK_KEYS = "wasd", "ijkl"
STEP, TURN_DEG, PITCH_LIMIT_DEG = 0.05, 2.0, 85.0  # the official act2cam's, the first two per frame
SCRIPT_PART = re.compile(r"(none|[wasdijkl]+)-(\d{1,6})")


def held_keys(script: str) -> np.ndarray:
    """Return which keys a script such as "w-10,iw-15" holds: bool [frames, 8], for w a s d i j k l. Frames are padded
    to 4n + 1. Raise CameraError for an invalid script."""
    rows = [row for part in script.lower().split(",") for row in _part_keys(part.strip(), script)]
    if not 0 < len(rows) <= MOST_FRAMES:
        raise CameraError(f"key script {script[:60]!r}: {len(rows)} frames, expected 1 to {MOST_FRAMES}")
    frames = max(5, -(-(len(rows) - 1) // 4) * 4 + 1)
    return np.array(rows + [[False] * 8] * (frames - len(rows)), dtype=bool)


def actions_from_keys(script: str) -> np.ndarray:
    """Return a script's W, A, S, D flags for an action model: float32 [frames, 4]. Raise CameraError for an invalid
    script."""
    return held_keys(script)[:, :4].astype(np.float32)


def poses_from_keys(script: str, *, step: float = STEP, turn_deg: float = TURN_DEG) -> np.ndarray:
    """Return n + 1 camera-to-world poses, float64 [n + 1, 4, 4]: the identity, and the pose after each of the n frames
    of `held_keys`. `step`: world units per frame. `turn_deg`: degrees per frame. The pitch stays within 85 degrees."""
    held = held_keys(script).astype(np.float64)
    w, a, s, d, i, j, k, l = (held[:, key] for key in range(8))  # noqa: E741
    angles_deg = np.stack([np.cumsum((l - j) * turn_deg), _pitch_deg((i - k) * turn_deg)], 1)
    rotations = from_angles("YX", angles_deg)
    steps = (w - s)[:, None] * _on_ground(rotations[:, :, 2]) + (d - a)[:, None] * _on_ground(rotations[:, :, 0])
    return np.concatenate([np.eye(4)[None], rigid(rotations, np.cumsum(step * steps, axis=0))])


def path_from_keys(
    script: str, *, fov_deg: float = DEFAULT_FOV_DEG, step: float = STEP, turn_deg: float = TURN_DEG
) -> CameraPath:
    """Return the path of a key script, with W, A, S, D flags per video frame. The keys wasd move; ijkl look around. In
    "w-10,iw-15", W is held for 10 frames, then I and W for 15. Frames are padded to 4n + 1.

    fov_deg: the horizontal field of view.
    step: world units per frame.
    turn_deg: degrees per frame.
    """
    actions = actions_from_keys(script)
    poses = poses_from_keys(script, step=step, turn_deg=turn_deg)
    held = np.concatenate([actions, actions[-1:]])
    return CameraPath(poses, lens_from_fov(fov_deg), actions=held).resampled(len(actions))


def _part_keys(part: str, script: str) -> list[list[bool]]:
    match = SCRIPT_PART.fullmatch(part)
    if not match:
        raise CameraError(
            f"key script {script[:60]!r}: cannot read {part[:40]!r}; expected keys of wasdijkl or none, a dash and a "
            "number of frames, such as w-10,iw-15,none-10"
        )
    keys, count = match.group(1), min(int(match.group(2)), MOST_FRAMES + 1)
    held = "" if keys == "none" else keys
    return [[key in held for key in MOVE_KEYS + LOOK_KEYS]] * count


def _pitch_deg(turns_deg: np.ndarray) -> np.ndarray:
    pitch_deg, reached = 0.0, []
    for turn_deg in turns_deg:
        if abs(pitch_deg + turn_deg) <= PITCH_LIMIT_DEG:
            pitch_deg += turn_deg
        reached.append(pitch_deg)
    return np.array(reached)


def _on_ground(axes: np.ndarray) -> np.ndarray:
    flat = axes * [1, 0, 1]
    return flat / (np.linalg.norm(flat, axis=-1, keepdims=True) + 1e-6)
