"""Functions on rotations [..., 3, 3] and rigid transforms [..., 4, 4] in float64."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

OPENGL_TO_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])
"""The transform between OpenGL and OpenCV camera axes, in both directions."""
STRAIGHT = 1e-7
"""A camera looks straight up or down if the cosine of its pitch is below this."""


def rigid(rotations: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return transforms [n, 4, 4] with `rotations` [n, 3, 3] or [3, 3], and `positions` [n, 3]."""
    transforms = np.tile(np.eye(4), (len(positions), 1, 1))
    transforms[:, :3, :3], transforms[:, :3, 3] = rotations, positions
    return transforms


def nearest_rotation(matrices: np.ndarray) -> np.ndarray:
    """Return the rotation closest to each matrix [..., 3, 3] (polar decomposition)."""
    left, _, right = np.linalg.svd(matrices)
    left[..., 2] *= np.sign(np.linalg.det(left @ right))[..., None]
    return left @ right


def orthogonality_error(matrices: np.ndarray) -> np.ndarray:
    """Return the largest element of |R^T R - I| for each R in `matrices` [n, 3, 3], as an array [n]."""
    return np.abs(np.swapaxes(matrices, 1, 2) @ matrices - np.eye(3)).max((1, 2), initial=0.0)


def inverse(poses: np.ndarray) -> np.ndarray:
    """Return the inverses of rigid transforms [..., 4, 4]."""
    result = np.zeros_like(poses)
    back = np.swapaxes(poses[..., :3, :3], -1, -2)
    result[..., :3, :3] = back
    result[..., :3, 3:] = -back @ poses[..., :3, 3:]
    result[..., 3, 3] = 1
    return result


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors [..., d] scaled to length 1 along the last axis."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def from_angles(axes: str, degrees: ArrayLike) -> np.ndarray:
    """Return right-handed rotations [n, 3, 3] by `degrees` [n, k] about `axes`, k letters such as "YX", which means Y @
    X. For k = 1, `degrees` may be [n]."""
    angles = np.deg2rad(np.reshape(np.asarray(degrees, float), (-1, len(axes))))
    rotations = np.tile(np.eye(3), (len(angles), 1, 1))
    for axis, angle in zip(axes, angles.T, strict=True):
        first, second = (("XYZ".index(axis) + step) % 3 for step in (1, 2))
        turn = np.tile(np.eye(3), (len(angles), 1, 1))
        turn[:, first, first] = turn[:, second, second] = np.cos(angle)
        turn[:, second, first] = np.sin(angle)
        turn[:, first, second] = -turn[:, second, first]
        rotations = rotations @ turn
    return rotations


def to_angles(rotation: np.ndarray) -> tuple[float, float, float]:
    """Return a rotation's angles in degrees about Y, X and Z, the inverse of `from_angles("YXZ", ...)`. For a camera
    that looks straight up or down, Z is 0."""
    level = float(np.hypot(rotation[1, 0], rotation[1, 1]))  # cosine of the angle about X
    pitch = np.arctan2(-rotation[1, 2], level)
    if level < STRAIGHT:
        yaw, roll = np.arctan2(-rotation[2, 0], rotation[0, 0]), 0.0
    else:
        yaw = np.arctan2(rotation[0, 2], rotation[2, 2])
        roll = np.arctan2(rotation[1, 0], rotation[1, 1])
    degrees = np.rad2deg([yaw, pitch, roll])
    return float(degrees[0]), float(degrees[1]), float(degrees[2])


def from_quaternions(quaternions: ArrayLike) -> np.ndarray:
    """Return rotations [..., 3, 3] from quaternions [..., 4] in the order x, y, z, w, of any length above 0."""
    return _scipy_rotation().from_quat(quaternions).as_matrix()


def to_quaternions(rotations: np.ndarray) -> np.ndarray:
    """Return the quaternions [..., 4], in the order x, y, z, w, of rotations [..., 3, 3]."""
    return _scipy_rotation().from_matrix(rotations).as_quat()


def from_vectors(vectors: np.ndarray) -> np.ndarray:
    """Return rotations [n, 3, 3] from rotation vectors [n, 3] (axis times angle in radians)."""
    return _scipy_rotation().from_rotvec(vectors).as_matrix()


def to_vectors(rotations: np.ndarray) -> np.ndarray:
    """Return the rotation vectors [n, 3] (axis times angle in radians) of rotations [n, 3, 3]."""
    return _scipy_rotation().from_matrix(rotations).as_rotvec()


def _scipy_rotation() -> Any:
    from scipy.spatial.transform import Rotation  # slow to import

    return Rotation


def angle_deg(rotations: np.ndarray) -> np.ndarray:
    """Return the angle of each rotation [n, 3, 3] in degrees, 0 to 180."""
    return np.rad2deg(np.linalg.norm(to_vectors(rotations), axis=-1))


def slerp(start: np.ndarray, end: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    """Return rotations [n, 3, 3] at `fraction` [n], 0 to 1, of the shortest arcs from `start` to `end` [n, 3, 3]."""
    turn = to_vectors(np.swapaxes(start, -1, -2) @ end)
    return start @ from_vectors(fraction[:, None] * turn)


def interpolate(c2w: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return poses [m, 4, 4] of the path `c2w` [n, 4, 4] at fractional frame numbers `times` [m]: linear positions,
    slerp for rotations."""
    before = np.minimum(times.astype(int), len(c2w) - 1)
    after = np.minimum(before + 1, len(c2w) - 1)
    fraction = times - before
    poses = c2w[before]
    if not fraction.any():
        return poses  # all times are integers
    poses[:, :3, :3] = slerp(c2w[before, :3, :3], c2w[after, :3, :3], fraction)
    poses[:, :3, 3] += fraction[:, None] * (c2w[after, :3, 3] - c2w[before, :3, 3])
    return poses
