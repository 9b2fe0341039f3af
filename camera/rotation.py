"""Rotations as matrices [..., 3, 3] and unit quaternions [..., 4] in the order x, y, z, w. All float64."""

import numpy as np

NEARLY_PARALLEL = 1 - 1e-12


def nearest_rotation(matrix: np.ndarray) -> np.ndarray:
    """The rotation closest to each 3x3 matrix (polar decomposition)."""
    left, _, right = np.linalg.svd(matrix)
    left[..., 2] *= np.sign(np.linalg.det(left @ right))[..., None]
    return left @ right
