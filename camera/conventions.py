"""The matrix conventions of other programs, and their conversion to camera-to-world in OpenCV axes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import CameraError
from .poses import as_float64, check_poses, with_last_row
from .rotation import OPENGL_TO_OPENCV, inverse
from .rounding import make_rigid, remove_rounding


@dataclass(frozen=True)
class Convention:
    """A convention for pose matrices: direction, camera axes, and storage order."""

    description: str
    camera_to_world: bool = True
    opengl_axes: bool = False
    by_column: bool = False


CONVENTIONS: dict[str, Convention] = {
    "opencv_c2w": Convention("camera-to-world, x right, y down, z forward"),
    "opencv_w2c": Convention("world-to-camera (extrinsics), x right, y down, z forward", camera_to_world=False),
    "opengl_c2w": Convention("camera-to-world, x right, y up, z back: Blender's matrix_world", opengl_axes=True),
    "opengl_w2c": Convention("world-to-camera (view matrix), x right, y up, z back", False, opengl_axes=True),
    "threejs": Convention("three.js matrixWorld.elements: as opengl_c2w, 16 numbers by column", True, True, True),
}


def to_opencv(values: ArrayLike, convention: Convention, name: str, numbers: np.ndarray | None = None) -> np.ndarray:
    """Return a file's pose matrices as rigid camera-to-world poses, float64 [n, 4, 4], in OpenCV axes. Raise
    CameraError for invalid matrices.

    values: [n, 4, 4], [n, 3, 4], [n, 12] or [n, 16].
    name: the prefix of error messages.
    numbers: the file's numbers, such as quaternions, from which `values` were computed. None if `values` are the file's
    numbers. Rounding errors are estimated from the file's numbers.
    """
    matrices, dtype = as_float64(values, name), getattr(values, "dtype", None)
    if matrices.ndim == 2 and matrices.shape[1] in (12, 16) and not (convention.by_column and matrices.shape[1] == 12):
        matrices = matrices.reshape(-1, matrices.shape[1] // 4, 4)
    elif convention.by_column:
        raise CameraError(f"{name}: shape {list(matrices.shape)}, expected 16 numbers by column for each frame")
    if convention.by_column or _are_by_column(matrices):
        matrices = matrices.swapaxes(1, 2)
    matrices = with_last_row(matrices)
    square = matrices.ndim == 3 and matrices.shape[1:] == (4, 4)
    poses = check_poses(make_rigid(matrices) if square else matrices, name)
    inverted = not convention.camera_to_world
    poses = inverse(poses) if inverted else poses
    poses = remove_rounding(poses, matrices if numbers is None else numbers, inverted=inverted, dtype=dtype)
    return poses @ OPENGL_TO_OPENCV if convention.opengl_axes else poses


def _are_by_column(matrices: np.ndarray) -> bool:
    """Whether 4x4 matrices are stored by column (transposed): the last row holds a translation, and the last column is
    0, 0, 0, 1."""
    last = [0, 0, 0, 1]
    if matrices.ndim != 3 or matrices.shape[1:] != (4, 4):
        return False
    return bool((matrices[:, :, 3] == last).all() and (np.abs(matrices[:, 3] - last) > 1e-6).any())


def reinterpret(c2w: np.ndarray, old: Convention, new: Convention) -> np.ndarray:
    """Undo the conversion from `old` in the poses `c2w`, and convert them from `new` instead. Input and result are
    camera-to-world [n, 4, 4] in OpenCV axes."""
    stored = c2w @ OPENGL_TO_OPENCV if old.opengl_axes else c2w
    poses = stored if old.camera_to_world == new.camera_to_world else inverse(stored)
    return poses @ OPENGL_TO_OPENCV if new.opengl_axes else poses
