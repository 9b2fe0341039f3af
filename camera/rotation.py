"""Rotations as matrices [..., 3, 3] and unit quaternions [..., 4] in the order x, y, z, w. All float64."""

import numpy as np

NEARLY_PARALLEL = 1 - 1e-12


def nearest_rotation(matrix: np.ndarray) -> np.ndarray:
    """The rotation closest to each 3x3 matrix (polar decomposition)."""
    left, _, right = np.linalg.svd(matrix)
    left[..., 2] *= np.sign(np.linalg.det(left @ right))[..., None]
    return left @ right


def about(axis: str, degrees) -> np.ndarray:
    """Right-handed rotation about the "x", "y" or "z" axis by each of `degrees`: [..., 3, 3].

    In OpenCV axes +x looks up, +y turns right and +z rolls clockwise as the camera sees it.
    """
    angle = np.deg2rad(np.asarray(degrees, dtype=np.float64))
    first, second = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    matrix = np.broadcast_to(np.eye(3), (*angle.shape, 3, 3)).copy()
    matrix[..., first, first] = matrix[..., second, second] = np.cos(angle)
    matrix[..., second, first] = np.sin(angle)
    matrix[..., first, second] = -np.sin(angle)
    return matrix


def angle_deg(matrix: np.ndarray) -> np.ndarray:
    """How far each rotation turns, in degrees, 0 to 180."""
    vector = quaternion(matrix)
    return np.rad2deg(2 * np.arctan2(np.linalg.norm(vector[..., :3], axis=-1), np.abs(vector[..., 3])))


def quaternion(matrix: np.ndarray) -> np.ndarray:
    """Unit quaternion of each rotation matrix, from the largest of its four components (Shepperd)."""
    xx, yy, zz = (matrix[..., i, i] for i in range(3))
    squares = np.stack([1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz, 1 + xx + yy + zz], -1)
    xy, yz, zx = (matrix[..., i, j] + matrix[..., j, i] for i, j in ((0, 1), (1, 2), (2, 0)))
    xw, yw, zw = (matrix[..., j, i] - matrix[..., i, j] for i, j in ((1, 2), (2, 0), (0, 1)))
    rows = np.stack([xx, xy, zx, xw, xy, yy, yz, yw, zx, yz, zz, zw, xw, yw, zw, zz], -1)
    rows = rows.reshape(*matrix.shape[:-2], 4, 4)
    rows[..., range(4), range(4)] = squares
    best = np.take_along_axis(rows, squares.argmax(-1)[..., None, None], -2)[..., 0, :]
    return unit(best)


def matrix(quaternion: np.ndarray) -> np.ndarray:
    """Rotation matrix of each unit quaternion."""
    x, y, z, w = np.moveaxis(quaternion, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def slerp(start: np.ndarray, end: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Unit quaternions `part` of the way (0 to 1) along the shortest arc from `start` to `end`, row by row."""
    dot = (start * end).sum(-1, keepdims=True)
    end, dot = np.where(dot < 0, -end, end), np.minimum(np.abs(dot), 1)
    part = np.asarray(part, dtype=np.float64)[..., None]
    angle = np.where(dot > NEARLY_PARALLEL, 1, np.arccos(dot))
    arc = (np.sin((1 - part) * angle) * start + np.sin(part * angle) * end) / np.sin(angle)
    return unit(np.where(dot > NEARLY_PARALLEL, (1 - part) * start + part * end, arc))


def aligned(quaternions: np.ndarray) -> np.ndarray:
    """The same rotations with signs chosen so that neighbours in [k, 4] lie on one half of the sphere."""
    turns = np.where((quaternions[1:] * quaternions[:-1]).sum(-1) < 0, -1.0, 1.0)
    return quaternions * np.concatenate([[1.0], np.cumprod(turns)])[:, None]


def squad_controls(quaternions: np.ndarray) -> np.ndarray:
    """Shoemake's inner control points for aligned quaternions [k, 4]: slopes are continuous through each of them."""
    before, after = quaternions[[0, *range(len(quaternions) - 1)]], quaternions[[*range(1, len(quaternions)), -1]]
    bend = _log(_times_inverse(before, quaternions)) + _log(_times_inverse(after, quaternions))
    controls = _times(_exp(-bend / 4), quaternions)
    controls[[0, -1]] = quaternions[[0, -1]]
    return controls


def squad(start, end, start_control, end_control, part) -> np.ndarray:
    """Spherical cubic between aligned unit quaternions, row by row (Shoemake 1987)."""
    outer, inner = slerp(start, end, part), slerp(start_control, end_control, part)
    return slerp(outer, inner, 2 * part * (1 - part))


def unit(vector: np.ndarray) -> np.ndarray:
    """Vectors of length one along the last axis."""
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    vector = a[..., 3:] * b[..., :3] + b[..., 3:] * a[..., :3] + np.cross(a[..., :3], b[..., :3])
    scalar = a[..., 3:] * b[..., 3:] - (a[..., :3] * b[..., :3]).sum(-1, keepdims=True)
    return np.concatenate([vector, scalar], -1)


def _times_inverse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _times(a, b * [-1, -1, -1, 1])


def _log(q: np.ndarray) -> np.ndarray:
    q = np.where(q[..., 3:] < 0, -q, q)
    length = np.linalg.norm(q[..., :3], axis=-1, keepdims=True)
    return q[..., :3] / np.where(length == 0, 1, length) * np.arctan2(length, q[..., 3:])


def _exp(vector: np.ndarray) -> np.ndarray:
    angle = np.linalg.norm(vector, axis=-1, keepdims=True)
    return np.concatenate([vector * np.sinc(angle / np.pi), np.cos(angle)], -1)
