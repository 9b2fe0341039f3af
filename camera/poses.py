"""Checked pose and intrinsics arrays, and how many frames they are good for.

Poses are camera-to-world matrices [n, 4, 4] in OpenCV axes (x right, y down, z forward); intrinsics are
fx, fy, cx, cy in pixels of an 832x480 image, whatever the size of the video.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import CameraError

LENS_WIDTH, LENS_HEIGHT = 832, 480
FEWEST_POSES = 5
RIGID_TOLERANCE = 1e-3
LARGEST_FILE = 64 * 2**20


def frame_count(requested: int, n_poses: int | None = None) -> int:
    """The 4n+1 frames that a video of `requested` frames gets; a shorter pose file shortens it.

    Raises CameraError for fewer than five poses or frames: less than two latent frames cannot move.
    """
    if n_poses is not None and n_poses < FEWEST_POSES:
        raise CameraError(f"{n_poses} camera poses; at least {FEWEST_POSES} are needed (two latent frames)")
    if requested < 1:
        raise CameraError(f"frames is {requested}; it must be at least 1")
    available = requested if n_poses is None else min(requested, n_poses)
    return (available - 1) // 4 * 4 + 1


def check_poses(c2w, name: str = "poses") -> np.ndarray:
    """`c2w` as float64 [n, 4, 4]; CameraError when it is not a list of finite rigid transforms, naming the frame."""
    c2w = numbers(c2w, name)
    if c2w.ndim != 3 or c2w.shape[1:] != (4, 4):
        raise CameraError(f"{name}: shape {list(c2w.shape)}, expected [n, 4, 4] camera-to-world matrices")
    _refuse_rows(~np.isfinite(c2w).all((1, 2)), name, "is not finite (NaN or infinity)")
    _refuse_rows((np.abs(c2w[:, 3] - [0, 0, 0, 1]) > 1e-6).any(1), name, "has a last row other than 0 0 0 1")
    rotation = c2w[:, :3, :3]
    skew = np.abs(np.swapaxes(rotation, 1, 2) @ rotation - np.eye(3)).max((1, 2), initial=0)
    _refuse_rows(skew > RIGID_TOLERANCE, name, "is not rigid: its 3x3 part is scaled or sheared, not a rotation")
    _refuse_rows(np.linalg.det(rotation) < 0, name, "is mirrored (determinant -1), not a rotation")
    return c2w


def check_intrinsics(intrinsics, name: str = "intrinsics") -> np.ndarray:
    """`intrinsics` as float64 [n, 4], from [n, 4] or one row [4]; CameraError for anything a lens cannot be."""
    rows = np.atleast_2d(numbers(intrinsics, name))
    if rows.ndim != 2 or rows.shape[1] != 4 or not len(rows):
        raise CameraError(f"{name}: shape {list(rows.shape)}, expected [n, 4] (fx, fy, cx, cy at 832x480)")
    _refuse_rows(~np.isfinite(rows).all(1), name, "is not finite (NaN or infinity)")
    _refuse_rows((rows[:, :2] <= 0).any(1), name, "has a focal length of zero or less (fx, fy, cx, cy expected)")
    return rows


def load_poses(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Poses float64 [n, 4, 4] and intrinsics float64 [m, 4] of a folder with poses.npy and intrinsics.npy.

    A path to the pose file itself takes the intrinsics.npy beside it. Raises CameraError.
    """
    path = Path(path)
    poses = path / "poses.npy" if path.is_dir() else path
    c2w = check_poses(load_array(poses), str(poses))
    if len(c2w) < FEWEST_POSES:
        raise CameraError(f"{poses}: {len(c2w)} poses; at least {FEWEST_POSES} are needed (two latent frames)")
    lens = poses.with_name("intrinsics.npy")
    return c2w, check_intrinsics(load_array(lens), str(lens))


def load_array(path: str | Path) -> np.ndarray:
    """One plain .npy array of at most 64 MiB; pickled objects are refused."""
    path = Path(path)
    check_file(path)
    try:
        return np.lib.format.read_array(path.open("rb"), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise CameraError(f"{path}: not a plain .npy array ({error})") from error


def check_file(path: Path, largest: int = LARGEST_FILE) -> None:
    """CameraError unless `path` is a file with something in it, small enough to be a camera path."""
    if not path.is_file():
        raise CameraError(f"{path}: no such file")
    size = path.stat().st_size
    if not 0 < size <= largest:
        expected = f"at most {largest // 2**20} MiB" if size else "a camera path"
        raise CameraError(f"{path}: {size} bytes, expected {expected}")


def numbers(values, name: str) -> np.ndarray:
    """`values` as a float64 array; CameraError when it is ragged or holds anything but numbers."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise CameraError(f"{name}: rows of unequal length") from error
    if array.dtype.kind not in "fiu":
        raise CameraError(f"{name}: dtype {array.dtype}, expected numbers")
    return array.astype(np.float64)


def _refuse_rows(bad: Sequence[bool], name: str, complaint: str) -> None:
    frames = np.flatnonzero(bad)
    if len(frames):
        more = f" (and {len(frames) - 1} more)" if len(frames) > 1 else ""
        raise CameraError(f"{name}: frame {frames[0]}{more} {complaint}")
