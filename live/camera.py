"""The camera of a walk, which turns inputs into poses, one per video frame."""

from __future__ import annotations

import math

import numpy as np

from ..camera import continued_poses
from ..camera.moves.keys import PITCH_LIMIT_DEG, STEP, TURN_DEG
from ..camera.plucker import longest_step_after
from ..camera.rotation import from_angles, inverse, rigid, to_angles
from .controls import FRAMES_OF_ONE, RUNNING, Wishes
from .worlds.walls import Standing

WALKING_UNIT = FRAMES_OF_ONE * STEP
"""The unit of a walk that continues no path: the distance of a latent frame at full speed. Translations are divided by
the unit, so that this distance becomes 1, the longest step that a model knows."""
FRAMES_TO_SPEED = 3
"""The number of video frames from standing to full speed, and back, so that a tap gives a small move."""
FASTEST_LOOK_DEG = 6.0
"""The largest rotation by the mouse in a video frame, in degrees; the remainder follows in the next frames."""
WALKING_SPEED = 0.5
"""The walking speed of a key, as a fraction of the longest step; Shift doubles it. In the official examples the median
latent frame moves 0.19 to 0.78 of its clip's longest step."""
PITCH_DEG = 1.5
"""The largest pitch in a video frame, in degrees: 6 in a latent frame. The official examples have 0.3 to 1.0 on
average, and at most 6.8."""


class WalkingCamera:
    """A steered camera with position, yaw, pitch and their speeds. Poses are computed from these numbers, so they stay
    rigid on a walk of any length. `unit`: see WALKING_UNIT."""

    def __init__(
        self,
        pose: np.ndarray | None = None,
        unit: float = WALKING_UNIT,
        speed: float = 1.0,
        pitch_deg: float = math.inf,
        walls: Standing | None = None,
    ) -> None:
        """Start without motion at a `pose` [4, 4]. `speed`: a key's speed as a fraction of the longest step; Shift
        doubles it, up to the longest step. `pitch_deg`: the largest pitch in a video frame, in degrees. `walls`: the
        position in a map with walls that stop the camera, or None."""
        self.unit, self._step, self.left = unit, unit / FRAMES_OF_ONE * speed, math.inf
        self._running, self._pitch_deg, self.walls = max(1.0, min(RUNNING, 1 / speed)), pitch_deg, walls
        self.place(np.eye(4) if pose is None else pose)

    def place(self, pose: np.ndarray, _frame: int = 0) -> None:
        """Move the camera, without motion, to a pose [4, 4], the pose of video frame `_frame`."""
        self._yaw, self._pitch, self._roll = to_angles(pose[:3, :3])
        self._position = pose[:3, 3].copy()
        self._speeds = np.zeros(4)  # fractions of full speed: forward, right, yaw, pitch
        self._look = np.zeros(2)  # remaining rotation in degrees

    @property
    def moves(self) -> bool:
        """Whether the camera still moves without further input."""
        return bool(self._speeds.any() or self._look.any())

    @property
    def pose(self) -> np.ndarray:
        """The current camera-to-world pose, float64 [4, 4], OpenCV axes."""
        rotation = from_angles("YXZ", [[self._yaw, self._pitch, self._roll]])
        return rigid(rotation, self._position[None])[0]

    def walk(self, wishes: Wishes) -> np.ndarray:
        """Advance the camera by the inputs of n video frames and return their poses, float64 [n, 4, 4]."""
        self._look += wishes.look
        return np.stack([self._advance(axes) for axes in wishes.axes]) if len(wishes.axes) else np.empty((0, 4, 4))

    def _advance(self, axes: np.ndarray) -> np.ndarray:
        # The requested speeds: diagonal walking is not faster than straight walking, and running at most as fast as
        # the longest step allows.
        most = min(self._running, max(1.0, float(np.abs(axes[:2]).max())))
        walk = axes[:2] * min(1.0, most / max(1e-9, float(np.hypot(*axes[:2]))))
        change = np.concatenate([walk, axes[2:]]) - self._speeds
        self._speeds = self._speeds + np.clip(change, -1 / FRAMES_TO_SPEED, 1 / FRAMES_TO_SPEED)
        keys, look = self._speeds[2:] * TURN_DEG, np.clip(self._look, -FASTEST_LOOK_DEG, FASTEST_LOOK_DEG)
        turn = keys + look
        turn[1] = min(max(turn[1], -self._pitch_deg), self._pitch_deg)
        turned = np.where(look == 0, 0.0, turn - keys)
        self._look = self._look - np.clip(turned, np.minimum(look, 0), np.maximum(look, 0))
        self._yaw = (self._yaw + turn[0] + 180) % 360 - 180
        pitch = self._pitch + turn[1]
        low, high = min(-PITCH_LIMIT_DEG, self._pitch), max(PITCH_LIMIT_DEG, self._pitch)
        self._pitch = min(max(pitch, low), high)
        yaw = np.deg2rad(self._yaw)
        forward, right = np.array([np.sin(yaw), 0, np.cos(yaw)]), np.array([np.cos(yaw), 0, -np.sin(yaw)])
        step = self._step * (self._speeds[0] * forward + self._speeds[1] * right)
        self._position = self._position + step if self.walls is None else self.walls.slide(self._position, step)
        return self.pose


class RecordedCamera:
    """A camera that follows a given path and ignores inputs. `left`: the number of remaining video frames. `unit`: the
    unit of the continued video, else the path's longest step, as for a Rollout."""

    def __init__(self, path: np.ndarray, pose: np.ndarray | None, unit: float) -> None:
        """Follow the poses `path`, c2w [n, 4, 4]. If the walk continues a video, `pose` is that video's last pose, at
        which the path then begins, and `unit` that video's unit; otherwise None and 0."""
        self._path = path if pose is None else pose @ inverse(path[0]) @ path
        self._at = 0
        latents = self._path[::FRAMES_OF_ONE]
        self.unit = unit or longest_step_after(latents[0], latents) or WALKING_UNIT

    @property
    def moves(self) -> bool:
        """Whether the path has frames left."""
        return self.left > 0

    @property
    def left(self) -> int:
        return len(self._path) - 1 - self._at

    @property
    def pose(self) -> np.ndarray:
        return self._path[self._at]

    def place(self, _pose: np.ndarray, frame: int) -> None:
        """Continue from the path's pose of video frame `frame`."""
        self._at = frame

    def walk(self, wishes: Wishes) -> np.ndarray:
        """Return the path's poses [n, 4, 4] of the next n video frames, the length of `wishes`."""
        first, self._at = self._at + 1, self._at + len(wishes.axes)
        return self._path[first : self._at + 1]


def whole_numbers(poses: np.ndarray) -> list[list[int]]:
    """Return [x, y, z, yaw, pitch] of each pose c2w [n, 4, 4] as integers, in 1/1000 unit and 1/100 degree, for a
    message."""
    angles = np.array([to_angles(pose[:3, :3])[:2] for pose in poses]).reshape(-1, 2)
    return np.rint(np.concatenate([1000 * poses[:, :3, 3], 100 * angles], axis=1)).astype(int).tolist()


def model_steps(world: np.ndarray, before: np.ndarray | None, unit: float) -> np.ndarray:
    """Return the model's camera input for the poses `world` [f, 4, 4] of latent frames: each pose relative to the one
    before, with translations divided by `unit`. `before`: the pose of the previous latent frame; for None the first
    result is the identity."""
    if before is None:
        rest = model_steps(world[1:], world[0], unit) if len(world) > 1 else world[1:]
        return np.concatenate([np.eye(4)[None], rest])
    return continued_poses(np.concatenate([before[None], world]), len(world), before=before, scale=unit)[0]
