"""Interpolation of keyframes: positions on a cubic spline, rotations by slerp or squad."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...errors import CameraError
from ...options import FPS
from ..path import DEFAULT_FOV_DEG, CameraPath, lens_from_fov
from ..poses import LENS_HEIGHT, LENS_WIDTH
from ..rotation import OPENGL_TO_OPENCV, from_quaternions, from_vectors, rigid, slerp, to_quaternions, to_vectors, unit


def spline(knots: np.ndarray, values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return points [n, d] at `times` [n] on a cubic Hermite spline through `values` [k, d] at `knots` [k], k > 1.
    Tangents are finite differences between neighbouring values."""
    from scipy.interpolate import CubicHermiteSpline

    before, after = np.arange(len(knots)) - 1, np.arange(len(knots)) + 1
    before[0], after[-1] = 0, len(knots) - 1
    slopes = (values[after] - values[before]) / (knots[after] - knots[before])[:, None]
    return CubicHermiteSpline(knots, values, slopes)(times)


def rotations_at(knots: np.ndarray, rotations: np.ndarray, times: np.ndarray, *, smooth: bool) -> np.ndarray:
    """Return rotations [n, 3, 3] at `times` [n] between the keyframes `rotations` [k, 3, 3] at `knots` [k], k > 1.
    `smooth`: use squad instead of slerp."""
    start = np.clip(np.searchsorted(knots, times, side="right") - 1, 0, len(knots) - 2)
    fraction = (times - knots[start]) / (knots[start + 1] - knots[start])
    direct = slerp(rotations[start], rotations[start + 1], fraction)
    if not smooth or len(knots) == 2:
        return direct
    controls, back = rotations.copy(), rotations[1:-1].swapaxes(1, 2)
    bend = to_vectors(rotations[:-2] @ back) + to_vectors(rotations[2:] @ back)
    # squad's inner controls lie on the other side of a keyframe than the mean of its neighbours
    controls[1:-1] = from_vectors(-bend / 4) @ rotations[1:-1]
    return slerp(direct, slerp(controls[start], controls[start + 1], fraction), 2 * fraction * (1 - fraction))


def path_through(
    knots: ArrayLike,
    positions: ArrayLike,
    rotations: np.ndarray,
    times: ArrayLike,
    *,
    lens: np.ndarray,
    fps: float = FPS,
    smooth_turns: bool = False,
) -> CameraPath:
    """Return a path through k keyframes.

    knots: [k], the keyframes' times.
    positions: [k, 3], interpolated by a cubic spline.
    rotations: [k, 3, 3], by squad if `smooth_turns`, else by slerp.
    times: [n], the times of the returned poses, clamped to the first and last of `knots`.
    lens: [4] or [n, 4], fx, fy, cx, cy in pixels of an 832x480 image.
    """
    knots, positions = np.asarray(knots, dtype=np.float64), np.asarray(positions, dtype=np.float64)
    times = np.clip(np.asarray(times, dtype=np.float64), knots[0], knots[-1])
    if len(knots) == 1:
        rotations, positions = rotations[0], np.tile(positions, (len(times), 1))
    else:
        rotations = rotations_at(knots, rotations, times, smooth=smooth_turns)
        positions = spline(knots, positions, times)
    return CameraPath(rigid(rotations, positions), lens, fps)


def knots_by_distance(positions: np.ndarray, frames: int) -> np.ndarray:
    """Return keyframe times [k] from 0 to `frames` - 1 for `positions` [k, 3]. Intervals grow with the square root of
    the distance (centripetal parametrization)."""
    steps = np.sqrt(np.linalg.norm(np.diff(positions, axis=0), axis=1))
    steps = np.maximum(steps, 1e-3 * steps.max()) if steps.any() else np.ones(len(steps))
    return np.concatenate([[0.0], np.cumsum(steps) / steps.sum() * (frames - 1)])


def path_from_load3d(
    cameras: Sequence[Mapping],
    frames: int,
    *,
    spacing: str = "even",
    smooth_turns: bool = True,
    fov_deg: float | None = None,
    fps: float = FPS,
) -> CameraPath:
    """Return a path through ComfyUI's LOAD3D_CAMERA values. Raise CameraError for invalid values. `spacing` in time:
    "even", or by "distance". `smooth_turns`: squad, else slerp. `fov_deg`: horizontal field of view; None for the first
    camera's."""
    if len(cameras) < 1 or spacing not in ("even", "distance"):
        raise CameraError(f"{len(cameras)} keyframes, spacing {spacing!r}: expected at least one, even or distance")
    poses = [_load3d_pose(camera, f"camera {index + 1}") for index, camera in enumerate(cameras)]
    positions = np.array([position for position, _ in poses])
    even = np.linspace(0, frames - 1, len(poses))
    knots = even if spacing == "even" or len(poses) == 1 else knots_by_distance(positions, frames)
    rotations = np.array([rotation for _, rotation in poses])
    lens = lens_from_fov(_load3d_fov(cameras[0]) if fov_deg is None else fov_deg)
    return path_through(knots, positions, rotations, np.arange(frames), lens=lens, fps=fps, smooth_turns=smooth_turns)


def load3d_camera(
    path: CameraPath, frame: int = 0, centre: np.ndarray | None = None, radius: float = 1.0
) -> dict[str, Any]:
    """Return a frame's camera as ComfyUI's LOAD3D_CAMERA value, with y up. The position is relative to `centre` [3] (y
    up; None for the origin), in units of `radius`."""
    axes, pose, lens = OPENGL_TO_OPENCV[:3, :3], path.c2w[frame], path.intrinsics[frame]
    position, rotation = axes @ pose[:3, 3], axes @ pose[:3, :3] @ axes
    position = (position - (0.0 if centre is None else centre)) / radius
    return {
        "position": dict(zip("xyz", position.tolist(), strict=True)),
        "target": dict(zip("xyz", (position - rotation[:, 2]).tolist(), strict=True)),
        "zoom": 1,
        "cameraType": "perspective",
        "quaternion": dict(zip("xyzw", to_quaternions(rotation).tolist(), strict=True)),
        "fov": float(np.rad2deg(2 * np.arctan(LENS_HEIGHT / 2 / lens[1]))),
        "aspect": LENS_WIDTH / LENS_HEIGHT,
    }


def _load3d_pose(camera: Mapping, name: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(camera, Mapping):
        raise CameraError(f"{name}: {type(camera).__name__}, expected the camera_info of a 3D node")
    if camera.get("cameraType", "perspective") != "perspective":
        raise CameraError(f"{name}: {camera['cameraType']} projection; switch the 3D view to perspective")
    position = _xyz(camera, "position", name)
    if camera.get("quaternion") is not None:
        rotation = from_quaternions(_vector(camera["quaternion"], "xyzw", f"{name} quaternion"))
    else:
        rotation = _looking_at(position, _xyz(camera, "target", name), name)
    axes = OPENGL_TO_OPENCV[:3, :3]
    return axes @ position, axes @ rotation @ axes


def _load3d_fov(camera: Mapping) -> float:
    """Return the horizontal field of view in degrees at 832x480, from the vertical one and the zoom."""
    down_deg, zoom = camera.get("fov") or 0, camera.get("zoom") or 1
    if not down_deg:
        return DEFAULT_FOV_DEG
    if not isinstance(down_deg, int | float) or not 0 < down_deg < 180:
        raise CameraError(f"camera 1: field of view {down_deg!r}, expected degrees between 0 and 180")
    if not isinstance(zoom, int | float) or not 0 < zoom < np.inf:
        raise CameraError(f"camera 1: zoom {zoom!r}, expected a number above 0")
    half_height = np.tan(np.deg2rad(float(down_deg)) / 2) / zoom
    return float(np.rad2deg(2 * np.arctan(half_height * LENS_WIDTH / LENS_HEIGHT)))


def _xyz(camera: Mapping, key: str, name: str) -> np.ndarray:
    if key not in camera:
        raise CameraError(f"{name}: no {key}; found {', '.join(sorted(camera)) or 'nothing'}")
    return _vector(camera[key], "xyz", f"{name} {key}")


def _vector(value: Any, parts: str, name: str) -> np.ndarray:
    try:
        vector = np.array([float(value[part]) for part in parts])
    except (KeyError, TypeError, ValueError) as error:
        raise CameraError(f"{name}: {value!r}, expected numbers {', '.join(parts)}") from error
    if not np.isfinite(vector).all() or (len(parts) == 4 and not vector.any()):
        raise CameraError(f"{name}: {value!r} is not finite, or zero")
    return vector


def _looking_at(position: np.ndarray, target: np.ndarray, name: str) -> np.ndarray:
    back = position - target
    if not back.any():
        raise CameraError(f"{name}: stands at its own target, so it has no viewing direction")
    back = unit(back)
    up = np.array([0.0, 1.0, 0.0]) if abs(back[1]) < 1 - 1e-9 else np.array([0.0, 0.0, -1.0])
    right = unit(np.cross(up, back))
    return np.stack([right, np.cross(back, right), back], axis=1)
