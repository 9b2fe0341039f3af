"""Checks of camera-to-world poses (OpenCV axes), intrinsics (832x480 pixels) and actions; rounding of video lengths."""

import numpy as np
from numpy.typing import ArrayLike

from ..errors import CameraError
from .rotation import orthogonality_error

LENS_WIDTH, LENS_HEIGHT = 832, 480
FEWEST_POSES = 5
RIGID_TOLERANCE = 1e-3
LARGEST_FRACTION = 10.0
"""A lens is in fractions of the image size, not in pixels, if none of its numbers exceeds LARGEST_FRACTION."""


def frame_count(requested: int, n_poses: int | None = None, chunk: int = 1) -> int:
    """Return the largest frame count 4n + 1 that exceeds neither `requested` nor `n_poses`. Its n + 1 latent frames
    must fill whole chunks of size `chunk`. Raise CameraError for too few frames or poses."""
    if n_poses is not None and n_poses < FEWEST_POSES:
        raise CameraError(f"{n_poses} camera poses; at least {FEWEST_POSES} are needed (two latent frames)")
    for name, value in (("frames", requested), ("chunk", chunk)):
        if value < 1:
            raise CameraError(f"{name} is {value}; it must be at least 1")
    available = requested if n_poses is None else min(requested, n_poses)
    latent_frames = ((available - 1) // 4 + 1) // chunk * chunk
    if latent_frames == 0:
        given = f"{requested} frames" if n_poses is None or requested <= n_poses else f"{n_poses} camera poses"
        raise CameraError(f"{given} do not fill a chunk of {chunk} latent frames: at least {4 * chunk - 3} are needed")
    return 4 * (latent_frames - 1) + 1


def with_last_row(matrices: np.ndarray) -> np.ndarray:
    """Return matrices [n, 3, 4] as [n, 4, 4] with the row 0 0 0 1 added, and other arrays unchanged."""
    if matrices.ndim != 3 or matrices.shape[1:] != (3, 4):
        return matrices
    bottom = np.broadcast_to(np.array([0, 0, 0, 1], matrices.dtype), (len(matrices), 1, 4))
    return np.concatenate([matrices, bottom], axis=1)


def check_poses(poses: ArrayLike, name: str = "poses") -> np.ndarray:
    """Return `poses` [n, 4, 4] or [n, 3, 4] as a float64 copy [n, 4, 4]. Raise CameraError unless all are finite rigid
    transforms."""
    c2w = with_last_row(as_float64(poses, name))
    if c2w.ndim != 3 or c2w.shape[1:] != (4, 4):
        raise CameraError(f"{name}: shape {list(c2w.shape)}, expected [n, 4, 4] camera-to-world matrices")
    if not len(c2w):
        raise CameraError(f"{name}: 0 poses, expected one or more")
    _refuse_rows(~np.isfinite(c2w).all((1, 2)), name, "is not finite (NaN or infinity)")
    _refuse_rows((np.abs(c2w[:, 3] - [0, 0, 0, 1]) > 1e-6).any(1), name, "has a last row other than 0 0 0 1")
    rotation = c2w[:, :3, :3]
    bad = orthogonality_error(rotation) > RIGID_TOLERANCE
    _refuse_rows(bad, name, "is not rigid: its 3x3 part is scaled or sheared, not a rotation")
    _refuse_rows(np.linalg.det(rotation) < 0, name, "is mirrored (determinant -1), not a rotation")
    return c2w


def check_actions(actions: ArrayLike, name: str = "actions") -> np.ndarray:
    """Return W, A, S, D flags as float64 [n, 4]. Raise CameraError for another shape or dtype, NaN and infinity."""
    flags = as_float64(actions, name, "fiub")
    if flags.ndim != 2 or flags.shape[1] != 4:
        raise CameraError(f"{name}: shape {list(flags.shape)}, expected [n, 4] (W, A, S, D)")
    _refuse_rows(~np.isfinite(flags).all(1), name, "is not finite (NaN or infinity)")
    return flags


def check_intrinsics(intrinsics: ArrayLike, name: str = "intrinsics") -> np.ndarray:
    """Return `intrinsics` [n, 4] or [4] as float64 [n, 4]. Raise CameraError for another shape, NaN, infinity, and
    focal lengths of 0 or less."""
    rows = np.atleast_2d(as_float64(intrinsics, name))
    if rows.ndim != 2 or rows.shape[1] != 4 or not len(rows):
        raise CameraError(f"{name}: shape {list(rows.shape)}, expected [n, 4] (fx, fy, cx, cy at 832x480)")
    _refuse_rows(~np.isfinite(rows).all(1), name, "is not finite (NaN or infinity)")
    _refuse_rows((rows[:, :2] <= 0).any(1), name, "has a focal length of zero or less (fx, fy, cx, cy expected)")
    return rows


def lens_change(rows: np.ndarray) -> list[str]:
    """Return a note, in a list, if a focal length in `rows` [n, 4] differs from the first row's; else []."""
    change = np.abs(rows[:, :2] / rows[0, :2] - 1).max() if rows[0, :2].all() else 0
    return [f"The lens varies by {change:.1%}; the model uses the first frame's only."] if change > 0.001 else []


def as_float64(values: ArrayLike, name: str, kinds: str = "fiu") -> np.ndarray:
    """Return a float64 copy of `values`. Raise CameraError for rows of unequal length, or if numpy's dtype kind is not
    in `kinds`."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise CameraError(f"{name}: rows of unequal length") from error
    if array.dtype.kind not in kinds:
        raise CameraError(f"{name}: dtype {array.dtype}, expected numbers")
    return array.astype(np.float64)


def _refuse_rows(bad: np.ndarray | np.bool_, name: str, complaint: str) -> None:
    frames = np.flatnonzero(bad)
    if len(frames):
        more = f" (and {len(frames) - 1} more)" if len(frames) > 1 else ""
        raise CameraError(f"{name}: frame {frames[0]}{more} {complaint}")
