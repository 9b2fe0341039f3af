"""Conversion of a camera path to the model's camera input: a ray for every pixel of every latent frame. The values
equal those of the official code (relative, scaled poses and `get_plucker_embeddings`), computed in float64 and stored
as float32. The 8x8 pixels of each latent pixel become channels."""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..errors import CameraError
from ..options import CELL
from ..typed import checked
from .poses import LENS_HEIGHT, LENS_WIDTH, as_float64, check_actions, check_intrinsics, check_poses, frame_count
from .rotation import interpolate, inverse, nearest_rotation

STILL_ABSOLUTE, STILL_RELATIVE = 1e-12, 1e-9


def latent_poses(c2w: np.ndarray, frames: int, chunk: int = 1) -> np.ndarray:
    """Return the camera-to-world poses [f, 4, 4] of a video's latent frames on a path `c2w` [n, 4, 4]: every fourth
    pose.

    The video's length is `frames`, shortened by `frame_count` to the form 4n+1 and to the number of poses. If f must be
    reduced to a multiple of `chunk`, f poses are interpolated at even intervals over the same part of the path. Raises
    CameraError if the path or `frames` is too short.
    """
    times = latent_times(len(c2w), frames, chunk)
    return interpolate(c2w, times) if times.dtype.kind == "f" else c2w[times].copy()


def latent_times(n_poses: int, frames: int, chunk: int = 1) -> np.ndarray:
    """Return the pose index [f] of each latent frame on a path of `n_poses`: the integers 0, 4, 8 and so on.

    The video's length is `frames`, shortened by `frame_count` to the form 4n+1 and to the number of poses. If f must be
    reduced to a multiple of `chunk`, the indices are float64, evenly spaced up to the last used pose. Raises
    CameraError if the path or `frames` is too short.
    """
    used, kept = (frame_count(frames, n_poses, size) for size in (1, chunk))
    return np.arange(0, used, 4) if kept == used else np.linspace(0, used - 1, (kept - 1) // 4 + 1)


def framewise_relative(c2w: np.ndarray) -> np.ndarray:
    """Return each pose of a path [f, 4, 4] in the axes of the pose before it. The first pose becomes the identity."""
    relative = np.tile(np.eye(4), (len(c2w), 1, 1))
    to_previous = np.swapaxes(c2w[:-1, :3, :3], 1, 2)
    relative[1:, :3, :3] = to_previous @ c2w[1:, :3, :3]
    relative[1:, :3, 3:] = to_previous @ (c2w[1:, :3, 3:] - c2w[:-1, :3, 3:])
    return relative


def stillness(poses: np.ndarray) -> float:
    """Return the length, in world units, up to which a step between two of the `poses` [n, 4, 4] counts as a rounding
    error."""
    return STILL_ABSOLUTE + STILL_RELATIVE * float(np.abs(poses[:, :3, 3]).max())


def model_poses(
    c2w: np.ndarray, frames: int, chunk: int = 1, *, scale: float | None = None, before: ArrayLike | None = None
) -> np.ndarray:
    """Return a path's poses [f, 4, 4] as the model receives them: float64, one per latent frame, each relative to the
    one before.

    scale: the divisor of translations. None: the length of the longest translation. If the camera stands still, all
    translations become 0.
    before: [4, 4], the camera-to-world pose before the first pose. None: the first pose becomes the identity.
    frames, chunk, errors: see `camera_embedding`.
    """
    return _scale(*_steps(latent_poses(c2w, frames, chunk), before), scale)


def continued_poses(
    c2w: ArrayLike, latent_frames: int, *, before: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the model poses (see `model_poses`) and camera-to-world poses, both [f, 4, 4], of a path that continues a
    video.

    latent_frames: the number f of poses. They come after `before`, at even intervals up to the path's end.
    before: [4, 4], the pose of the video's last latent frame. The path is moved to begin at this pose.
    scale: the video's divisor of translations. 0 means that the camera has not moved yet; then this path's longest step
    is the divisor.

    Raises CameraError for invalid poses and a negative `scale`.
    """
    path = check_poses(c2w)
    moved = before @ inverse(path[0]) @ path
    sampled = interpolate(moved, np.linspace(0, len(path) - 1, latent_frames + 1)[1:])
    return _scale(*_steps(sampled, before), scale or None), sampled


def longest_step_after(before: np.ndarray, world: np.ndarray) -> float:
    """Return the length, in world units, of the longest step from the pose `before` [4, 4] along the poses `world`, [f,
    4, 4]. The result is 0 if this step is within the rounding error (see `stillness`)."""
    return _steps(world, before)[1]


def longest_step(c2w: ArrayLike, *, frames: int, chunk: int = 1) -> float:
    """Return the longest distance between the cameras of consecutive latent frames on a path `c2w` [n, 4, 4], in world
    units. Return 0 for a camera that stands still. `camera_embedding` divides translations by this length unless
    `scale` is given. `frames`, `chunk`: see `latent_times`. Raises CameraError if the path or `frames` is too short."""
    return _steps(latent_poses(check_poses(c2w), frames, chunk))[1]


def _steps(sampled: np.ndarray, before: ArrayLike | None = None) -> tuple[np.ndarray, float]:
    """Return the poses `sampled` [f, 4, 4], each relative to the one before, and the length of the longest translation.
    The first pose is relative to `before`; without `before` it becomes the identity. If all translations are within the
    rounding error, the length is 0: `_scale` would otherwise enlarge the error to a step of length 1."""
    start = [] if before is None else [check_poses(as_float64(before, "the pose before")[None], "the pose before")]
    poses = np.concatenate([*start, sampled])
    poses[:, :3, :3] = nearest_rotation(poses[:, :3, :3])
    relative = framewise_relative(poses)[-len(sampled) :]
    longest = float(np.linalg.norm(relative[:, :3, 3], axis=1).max())
    return relative, longest if longest > stillness(poses) else 0.0


def _scale(relative: np.ndarray, longest: float, scale: float | None) -> np.ndarray:
    """Divide the translations of the poses `relative` in place by `scale`, or by `longest` if `scale` is None. If
    `longest` is 0, all translations become 0. Return `relative`. Raises CameraError for a `scale` of 0 or less."""
    if scale is not None and not 0 < scale < np.inf:
        raise CameraError(f"camera scale {scale}: expected a length above 0, in the units of the poses")
    relative[:, :3, 3] = relative[:, :3, 3] / (longest if scale is None else scale) if longest else 0
    return relative


def scaled_intrinsics(intrinsics: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return fx, fy, cx, cy [4] in pixels of a height x width image. The first row of `intrinsics` [n, 4], in pixels of
    an 832x480 image, is used."""
    across, down = width / LENS_WIDTH, height / LENS_HEIGHT
    return intrinsics[0] * [across, down, across, down]


def pixel_rays(intrinsics: ArrayLike, height: int, width: int) -> np.ndarray:
    """Return the unit ray through each pixel's centre in camera axes, float64 [3, 64, cells].

    A cell is the 8x8 pixels of one latent pixel. Both the 64 pixels of a cell and the cells of the image are in
    row-major order. `intrinsics` [n, 4] or [4] is in pixels of an 832x480 image; the first row is used. The result is
    cached for the next call with the same arguments, so do not write into it.
    """
    return _rays(tuple(scaled_intrinsics(check_intrinsics(intrinsics), height, width).tolist()), height, width)


@lru_cache(maxsize=1)
def _rays(lens: tuple[float, ...], height: int, width: int) -> np.ndarray:
    fx, fy, cx, cy = lens
    rays = np.ones((3, height, width))
    rays[0] = (np.arange(width) + 0.5 - cx) / fx
    rays[1] = ((np.arange(height) + 0.5 - cy) / fy)[:, None]
    rays /= np.linalg.norm(rays, axis=0)
    cells = rays.reshape(3, height // CELL, CELL, width // CELL, CELL).transpose(0, 2, 4, 1, 3)
    return cells.reshape(3, CELL * CELL, -1)


@checked
def camera_embedding(
    c2w: ArrayLike,
    intrinsics: ArrayLike,
    *,
    frames: int,
    height: int,
    width: int,
    chunk: int = 1,
    scale: float | None = None,
    before: ArrayLike | None = None,
) -> torch.Tensor:
    """Return the Pluecker map (ray origin, unit ray direction) of a path, with the 8x8 pixels of a latent cell as
    channels.

    c2w: [n, 4, 4], camera-to-world in OpenCV axes.
    intrinsics: [n, 4] or [4], fx, fy, cx, cy in pixels of an 832x480 image; the first row is used.
    frames: the video's length in frames, rounded down to 4n+1. Too few poses shorten it, see `frame_count`.
    height, width: the video's size in pixels.
    chunk: the number of latent frames in a causal model's chunk, usually 3. The number f of latent frames is rounded
    down to a multiple of `chunk`. If this shortens the video, the latent frames are spread evenly over the same poses.
    scale: the divisor of translations. None: the path's longest step, as in the official code. For a later part of a
    path, pass the scale of the first part, so that the speed stays the same. For live steering, pass the distance that
    the camera moves in four frames at full speed.
    before: [4, 4], the pose of the latent frame before this part. None: the first pose is the identity.

    Returns float32 [1, 384, f, height/8, width/8], channel = component * 64 + row * 8 + column. Raises CameraError for
    invalid arrays, too few poses or `frames`, a size that is not a multiple of 8, and a `scale` of 0 or less.
    """
    _check_size(height, width)
    poses = model_poses(check_poses(c2w), frames, chunk, scale=scale, before=before)
    return pose_embedding(poses, intrinsics, height=height, width=width)


def pose_embedding(
    poses: np.ndarray, intrinsics: ArrayLike, *, height: int, width: int, flags: np.ndarray | None = None
) -> torch.Tensor:
    """Return the camera input for `poses` [f, 4, 4] from `model_poses`: float32 [1, 384, f, height/8, width/8], as from
    `camera_embedding`. With `flags` [f, 4] (W, A, S, D) the result is [1, 448, f, height/8, width/8], as from
    `action_embedding`.

    `intrinsics` [4] or [n, 4] is in pixels of an 832x480 image. Raises CameraError for a size that is not a multiple of
    8 and for invalid intrinsics.
    """
    _check_size(height, width)
    rays = pixel_rays(intrinsics, height, width)
    if flags is not None:
        return _action_embedding(poses, rays, flags, height, width)
    embedding = torch.empty(1, 6 * CELL * CELL, len(poses), height // CELL, width // CELL)
    write_embedding(embedding, poses, rays)
    return embedding


def write_embedding(out: torch.Tensor, poses: np.ndarray, rays: np.ndarray) -> None:
    """Write the `pose_embedding` of `poses` [f, 4, 4] into `out`, float32 [1, 384, f, height/8, width/8] in host
    memory. `rays`: from `pixel_rays`. A live session reuses `out`, because an allocation takes longer than the
    writing."""
    embedding = out.numpy().reshape(6, CELL * CELL, len(poses), -1)
    embedding[:3] = poses[:, :3, 3].T[:, None, :, None]
    _write_directions(embedding[3:], poses, rays)


def action_embedding(
    c2w: ArrayLike, intrinsics: ArrayLike, actions: ArrayLike, *, frames: int, height: int, width: int
) -> torch.Tensor:
    """Return an action model's camera input, float32 [1, 448, f, height/8, width/8]: for each pixel a ray direction (3)
    and W, A, S, D flags (4). `actions` [n, 4] has a row per frame; every fourth is used. Other arguments and errors:
    see `camera_embedding`. Raises CameraError also for too few rows of actions."""
    _check_size(height, width)
    poses = model_poses(check_poses(c2w), frames)
    rows = check_actions(actions)
    flags = rows[::4][: len(poses)]
    if len(flags) < len(poses):
        raise CameraError(f"actions: {len(rows)} rows, expected at least {4 * len(poses) - 3}, as many as poses")
    return _action_embedding(poses, pixel_rays(intrinsics, height, width), flags, height, width)


def _action_embedding(poses: np.ndarray, rays: np.ndarray, flags: np.ndarray, height: int, width: int) -> torch.Tensor:
    embedding = np.empty((7, CELL * CELL, len(poses), rays.shape[-1]), np.float32)
    _write_directions(embedding[:3], poses, rays)
    embedding[3:] = flags.T[:, None, :, None]
    return torch.from_numpy(embedding.reshape(1, 7 * CELL * CELL, len(poses), height // CELL, width // CELL))


def _check_size(height: int, width: int) -> None:
    if height < CELL or width < CELL or height % CELL or width % CELL:
        raise CameraError(f"camera for a {width}x{height} video: both sides must be multiples of {CELL}")


def _write_directions(out: np.ndarray, poses: np.ndarray, rays: np.ndarray) -> None:
    rotations = poses[:, :3, :3].transpose(1, 0, 2).reshape(-1, 3)
    for pixel in range(rays.shape[1]):  # one pixel of each cell at a time, so that the float64 product stays small
        out[:, pixel] = (rotations @ rays[:, pixel]).reshape(3, len(poses), -1)
