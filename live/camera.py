"""The camera of a walk (a steered video), which turns the user's inputs into one camera pose per video frame."""

from __future__ import annotations

import math

import numpy as np

from ..camera import continued_poses
from ..camera.moves.keys import PITCH_LIMIT_DEG, STEP, TURN_DEG
from ..camera.plucker import longest_step_after
from ..camera.rotation import from_angles, inverse, rigid, to_angles
from .controls import FRAMES_PER_LATENT, RUNNING, FrameInputs
from .worlds.walls import PlacedMap

WALKING_UNIT = FRAMES_PER_LATENT * STEP
"""The unit of length of a walk that starts from an image: the distance per latent frame at full speed."""
FRAMES_TO_SPEED = 3
"""The number of video frames in which the camera reaches full speed, or stops."""
FASTEST_LOOK_DEG = 6.0
"""The maximum rotation by the mouse in one video frame, in degrees. The rest follows in later frames."""
WALKING_SPEED = 0.5
"""A session's default walking speed. Speed 1 is one unit of length per latent frame, the largest in training."""
FASTEST_PITCH_DEG = 1.5
"""The maximum change of pitch in one video frame, by keys and mouse together, in degrees."""


class WalkingCamera:
    """A steered camera with a position, a yaw, a pitch and their speeds.

    unit: the divisor of translations in the model's camera input.
    """

    def __init__(
        self,
        pose: np.ndarray | None = None,
        unit: float = WALKING_UNIT,
        speed: float = 1.0,
        pitch_deg: float = math.inf,
        walls: PlacedMap | None = None,
    ) -> None:
        """Place the camera at rest.

        pose: camera-to-world [4, 4]; None is the identity.
        unit: the distance per latent frame at speed 1, and the divisor of translations in the model's camera input.
        speed: the speed of key W, as a fraction of `unit` per latent frame.
        pitch_deg: the maximum change of pitch per video frame, in degrees.
        walls: a map whose walls stop the camera; None means no walls.
        """
        self.unit, self._step, self.frames_left = unit, unit / FRAMES_PER_LATENT * speed, math.inf
        self._running, self._pitch_deg, self.walls = max(1.0, min(RUNNING, 1 / speed)), pitch_deg, walls
        self.place(np.eye(4) if pose is None else pose)

    def place(self, pose: np.ndarray, _frame: int = 0) -> None:
        """Move the camera to the pose [4, 4] and stop its motion; `_frame` is ignored."""
        self._yaw, self._pitch, self._roll = to_angles(pose[:3, :3])
        self._position = pose[:3, 3].copy()
        self._speeds = np.zeros(4)  # fractions of full speed: forward, right, yaw, pitch
        self._look = np.zeros(2)  # remaining rotation in degrees

    @property
    def is_moving(self) -> bool:
        """Whether the camera moves even without input, because it brakes or a mouse rotation is unfinished."""
        return bool(self._speeds.any() or self._look.any())

    @property
    def pose(self) -> np.ndarray:
        """The current camera-to-world pose, float64 [4, 4], in OpenCV axes."""
        rotation = from_angles("YXZ", [[self._yaw, self._pitch, self._roll]])
        return rigid(rotation, self._position[None])[0]

    def move(self, inputs: FrameInputs) -> np.ndarray:
        """Move the camera by the inputs of the next n video frames. Return the frames' camera-to-world poses, float64
        [n, 4, 4]."""
        self._look += inputs.look
        return np.stack([self._advance(axes) for axes in inputs.axes]) if len(inputs.axes) else np.empty((0, 4, 4))

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
    """A camera that follows a path and ignores the user's inputs.

    frames_left: the number of video frames that remain of the path.
    unit: translations are divided by this for the model's camera input.
    """

    def __init__(self, path: np.ndarray, pose: np.ndarray | None, unit: float) -> None:
        """Start at the beginning of a path of camera-to-world poses [n, 4, 4]. Unless `pose` is None, move the path to
        begin there. `unit` is the divisor of translations in the model's camera input; 0 selects the path's longest
        translation per latent frame."""
        self._path = path if pose is None else pose @ inverse(path[0]) @ path
        self._at = 0
        latents = self._path[::FRAMES_PER_LATENT]
        self.unit = unit or longest_step_after(latents[0], latents) or WALKING_UNIT

    @property
    def is_moving(self) -> bool:
        return self.frames_left > 0

    @property
    def frames_left(self) -> int:
        return len(self._path) - 1 - self._at

    @property
    def pose(self) -> np.ndarray:
        return self._path[self._at]

    def place(self, _pose: np.ndarray, frame: int) -> None:
        """Go to the path's pose at video frame number `frame`; `_pose` is ignored."""
        self._at = frame

    def move(self, inputs: FrameInputs) -> np.ndarray:
        """Return the path's poses [n, 4, 4] for the next n video frames. `inputs` only determines n."""
        first, self._at = self._at + 1, self._at + len(inputs.axes)
        return self._path[first : self._at + 1]


def integer_poses(poses: np.ndarray) -> list[list[int]]:
    """Return poses [n, 4, 4] as rows of integers: x, y, z in 1/1000 unit of length, yaw and pitch in 1/100 degree."""
    angles = np.array([to_angles(pose[:3, :3])[:2] for pose in poses]).reshape(-1, 2)
    return np.rint(np.concatenate([1000 * poses[:, :3, 3], 100 * angles], axis=1)).astype(int).tolist()


def relative_poses(world: np.ndarray, before: np.ndarray | None, unit: float) -> np.ndarray:
    """Return the model's camera input [f, 4, 4]: each pose relative to the previous one, with translations divided by
    `unit`. `before` is the pose before `world`; if None, the first result is the identity."""
    if before is None:
        rest = relative_poses(world[1:], world[0], unit) if len(world) > 1 else world[1:]
        return np.concatenate([np.eye(4)[None], rest])
    return continued_poses(np.concatenate([before[None], world]), len(world), before=before, scale=unit)[0]
