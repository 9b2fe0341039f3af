"""The camera path: an immutable class with methods that return changed copies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..errors import CameraError
from ..options import FPS
from .easing import apply_easing
from .poses import LENS_HEIGHT, LENS_WIDTH, check_actions, check_intrinsics, check_poses, frame_count
from .rotation import interpolate, inverse, nearest_rotation

DEFAULT_FOV_DEG = 79.0
MOST_FRAMES = 100_000


def lens_from_fov(fov_deg: float = DEFAULT_FOV_DEG) -> np.ndarray:
    """Return fx, fy, cx, cy in pixels of an 832x480 image for a horizontal field of view. Raise CameraError below 1 and
    above 170 degrees."""
    if not 1 <= fov_deg <= 170:
        raise CameraError(f"field of view {fov_deg} degrees: expected 1 to 170, measured across the picture")
    focal = LENS_WIDTH / 2 / np.tan(np.deg2rad(fov_deg) / 2)
    return np.array([focal, focal, LENS_WIDTH / 2, LENS_HEIGHT / 2])


@dataclass(frozen=True)
class Origin:
    """The file format and matrix convention of a path that was read from a file.

    overridden: whether `convention` differs from the format's default.
    """

    format: str
    convention: str
    overridden: bool = False


@dataclass(frozen=True, eq=False)
class CameraPath:
    """A camera path with read-only arrays. Raises CameraError for invalid values.

    c2w: [n, 4, 4], camera-to-world in OpenCV axes, made orthonormal.
    intrinsics: [n, 4] or [4], fx, fy, cx, cy in pixels of an 832x480 image.
    fps: poses per second.
    actions: [n, 4], W, A, S, D flags for action models.
    origin: the file's format and convention; None without a file, or if the poses were transformed, reversed or joined.
    """

    c2w: np.ndarray
    intrinsics: np.ndarray
    fps: float = FPS
    actions: np.ndarray | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        c2w = check_poses(self.c2w).copy()
        if not 1 <= len(c2w) <= MOST_FRAMES:
            raise CameraError(f"camera path of {len(c2w)} poses: expected 1 to {MOST_FRAMES}")
        lens = check_intrinsics(self.intrinsics)
        if len(lens) not in (1, len(c2w)):
            raise CameraError(f"{len(lens)} rows of intrinsics for {len(c2w)} poses: expected one, or one a pose")
        if self.actions is not None:
            actions = check_actions(self.actions).astype(np.float32)
            if len(actions) != len(c2w):
                raise CameraError(f"{len(actions)} rows of actions for {len(c2w)} poses: expected as many")
            object.__setattr__(self, "actions", _freeze(actions))
        if not 0 < self.fps < np.inf:
            raise CameraError(f"{self.fps} frames a second: expected more than 0")
        c2w[:, :3, :3] = nearest_rotation(c2w[:, :3, :3])
        object.__setattr__(self, "c2w", _freeze(c2w))
        object.__setattr__(self, "intrinsics", _freeze(np.broadcast_to(lens, (len(c2w), 4)).copy()))

    def __len__(self) -> int:
        return len(self.c2w)

    def __getitem__(self, frames: slice) -> CameraPath:
        """Return the path of a slice of frames; `path[::-1]` reverses the order."""
        actions = None if self.actions is None else self.actions[frames]
        origin = None if (frames.step or 1) < 0 else self.origin
        return replace(self, c2w=self.c2w[frames], intrinsics=self.intrinsics[frames], actions=actions, origin=origin)

    def __add__(self, other: CameraPath) -> CameraPath:
        """Return this path followed by `other`, moved to begin at this path's last pose. The shared pose occurs once.
        Raise CameraError for different frame rates."""
        if other.fps != self.fps:
            raise CameraError(f"paths of {self.fps} and {other.fps} frames a second: retime one of them first")
        moved, actions = other.starting_at(self.c2w[-1]), None
        if self.actions is not None and other.actions is not None:
            actions = np.concatenate([self.actions[:-1], other.actions])  # the second path's action for the shared pose
        return replace(
            self,
            c2w=np.concatenate([self.c2w, moved.c2w[1:]]),
            intrinsics=np.concatenate([self.intrinsics, other.intrinsics[1:]]),
            actions=actions,
            origin=None,
        )

    @property
    def positions(self) -> np.ndarray:
        """The camera positions [n, 3] in world units."""
        return self.c2w[:, :3, 3]

    @property
    def rotations(self) -> np.ndarray:
        """The camera-to-world rotations [n, 3, 3]."""
        return self.c2w[:, :3, :3]

    @property
    def fov_deg(self) -> float:
        """The horizontal field of view of the first frame, in degrees."""
        return float(np.rad2deg(2 * np.arctan(LENS_WIDTH / 2 / self.intrinsics[0, 0])))

    def moved(self, world: np.ndarray) -> CameraPath:
        """Return the path with poses `world` @ c2w, for a rigid transform `world` [4, 4]."""
        return replace(self, c2w=world @ self.c2w, origin=None)

    def starting_at(self, pose: np.ndarray) -> CameraPath:
        """Return the path moved so that `pose` [4, 4] is its first pose."""
        return self.moved(pose @ inverse(self.c2w[0]))

    def relative(self) -> CameraPath:
        """Return the path moved so that its first pose is the identity."""
        return self.starting_at(np.eye(4))

    def reversed(self) -> CameraPath:
        """Return the path with its poses in reverse order."""
        return self[::-1]

    def at(self, times: np.ndarray) -> CameraPath:
        """Return the path at fractional frame numbers `times` [m], clamped to its ends. An action is held until the
        next frame."""
        frames = np.arange(len(self))
        times = np.clip(np.asarray(times, dtype=np.float64), 0, frames[-1])
        lens = np.stack([np.interp(times, frames, column) for column in self.intrinsics.T], -1)
        actions = None if self.actions is None else self.actions[np.minimum(times.astype(int), max(len(self) - 2, 0))]
        return replace(self, c2w=interpolate(self.c2w, times), intrinsics=lens, actions=actions)

    def resampled(self, frames: int) -> CameraPath:
        """Return the full path resampled to `frames` poses. Raise CameraError for `frames` below 1 or above
        MOST_FRAMES."""
        if not 1 <= frames <= MOST_FRAMES:
            raise CameraError(f"resample to {frames} frames: expected 1 to {MOST_FRAMES}")
        return self.at(np.linspace(0, len(self) - 1, frames))

    def for_video(self, frames: int) -> CameraPath:
        """Return the full path resampled to `frames` poses, rounded down to 4n + 1."""
        return self.resampled(frame_count(frames))

    def eased(self, easing: str) -> CameraPath:
        """Return the path retimed by an easing curve in EASINGS, with the same number of poses."""
        last = len(self) - 1
        return self.at(last * apply_easing(easing, np.arange(len(self)) / max(last, 1)))

    def scaled(self, factor: float) -> CameraPath:
        """Return the path with distances from its first pose multiplied by `factor`. Raise CameraError if `factor` is
        not finite."""
        if not np.isfinite(factor):
            raise CameraError(f"scale {factor}: expected a finite number")
        c2w, start = self.c2w.copy(), self.positions[0]
        c2w[:, :3, 3] = start + factor * (self.positions - start)
        return replace(self, c2w=c2w)

    def smoothed(self, sigma: float) -> CameraPath:
        """Return the path smoothed by a Gaussian. `sigma`: its standard deviation in frames. Raise CameraError for a
        negative or infinite `sigma`."""
        if not 0 <= sigma < np.inf:
            raise CameraError(f"smoothing radius {sigma}: expected 0 or more frames")
        reach = min(int(np.ceil(3 * sigma)), len(self) - 1)
        if reach == 0:
            return self
        from scipy.ndimage import gaussian_filter1d  # slow to import

        c2w = self.c2w.copy()
        c2w[:, :3] = gaussian_filter1d(c2w[:, :3], sigma, axis=0, mode="nearest", radius=reach)
        c2w[:, :3, :3] = nearest_rotation(c2w[:, :3, :3])
        return replace(self, c2w=c2w)

    def looped(self) -> CameraPath:
        """Return the path followed by itself backwards, so that it ends at its first pose."""
        return self + self.reversed()


def _freeze(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
