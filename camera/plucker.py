"""Conversion of a camera path to the model's camera input, a Pluecker map equal to the official code's."""

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
    """Return the path's pose at each latent frame, [f, 4, 4]. `c2w`: [n, 4, 4]. `frames`: the number of video frames. f
    is rounded down to a multiple of `chunk`."""
    return interpolate(c2w, latent_times(len(c2w), frames, chunk))


def latent_times(n_poses: int, frames: int, chunk: int = 1) -> np.ndarray:
    """Return the fractional index of the path's pose at each latent frame, float64 [f]: 0, 4, 8, ... If f is rounded
    down to a multiple of `chunk`, the indices are spread evenly over the same range. `frames`: the number of video
    frames. Raise CameraError for too few poses."""
    used, kept = (frame_count(frames, n_poses, size) for size in (1, chunk))
    return np.linspace(0, used - 1, (kept - 1) // 4 + 1)


def framewise_relative(c2w: np.ndarray) -> np.ndarray:
    """Return each pose of a path [f, 4, 4] in the axes of the pose before it. The first pose becomes the identity."""
    relative = np.tile(np.eye(4), (len(c2w), 1, 1))
    to_previous = np.swapaxes(c2w[:-1, :3, :3], 1, 2)
    relative[1:, :3, :3] = to_previous @ c2w[1:, :3, :3]
    relative[1:, :3, 3:] = to_previous @ (c2w[1:, :3, 3:] - c2w[:-1, :3, 3:])
    return relative


def still_tolerance(poses: np.ndarray) -> float:
    """Return the length, in world units, below which steps between `poses` [n, 4, 4] count as rounding errors."""
    return STILL_ABSOLUTE + STILL_RELATIVE * float(np.abs(poses[:, :3, 3]).max())


def model_poses(
    c2w: np.ndarray, frames: int, chunk: int = 1, *, scale: float | None = None, before: ArrayLike | None = None
) -> np.ndarray:
    """Return the model's input for f latent frames, [f, 4, 4]: the pose of each latent frame relative to the previous
    one's.

    frames: video frames, for at most (frames - 1) // 4 + 1 latent frames.
    chunk: latent frames generated together; f is a multiple.
    scale: the divisor of translations, by default the longest translation.
    before: the pose [4, 4] before the first. If None, the first input is the identity.
    """
    return _scale(*_steps(latent_poses(c2w, frames, chunk), before), scale)


def continued_poses(
    c2w: ArrayLike, latent_frames: int, *, before: np.ndarray, scale: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Move the path `c2w` [n, 4, 4] to begin at `before`, and sample `latent_frames` later poses evenly. Return them
    twice, [f, 4, 4] each: as the model's input, and as camera-to-world.

    before: [4, 4], the last pose of the video so far.
    scale: the divisor of translations in the model's input; None for the longest translation.
    """
    path = check_poses(c2w)
    moved = before @ inverse(path[0]) @ path
    sampled = interpolate(moved, np.linspace(0, len(path) - 1, latent_frames + 1)[1:])
    return _scale(*_steps(sampled, before), scale), sampled


def longest_step_after(before: np.ndarray, world: np.ndarray) -> float:
    """Return the longest step, in world units, from `before` [4, 4] along the poses `world` [f, 4, 4]; 0 for a still
    camera."""
    return _steps(world, before)[1]


def longest_step(c2w: ArrayLike, *, frames: int, chunk: int = 1) -> float:
    """Return the longest translation between consecutive latent frames of the path `c2w` [n, 4, 4], in world units; 0
    for a still camera.

    frames: the number of video frames; further poses are unused.
    chunk: the latent frames generated together; their total is a multiple.
    """
    return _steps(latent_poses(check_poses(c2w), frames, chunk))[1]


def _steps(sampled: np.ndarray, before: ArrayLike | None = None) -> tuple[np.ndarray, float]:
    """Return each pose of `sampled` [f, 4, 4] relative to the previous one, and the longest translation's length. This
    length is 0 if it may be a rounding error. `before`: the pose before the first; if None, the first result is the
    identity."""
    start = [] if before is None else [check_poses(as_float64(before, "the pose before")[None], "the pose before")]
    poses = np.concatenate([*start, sampled])
    poses[:, :3, :3] = nearest_rotation(poses[:, :3, :3])
    relative = framewise_relative(poses)[-len(sampled) :]
    longest = float(np.linalg.norm(relative[:, :3, 3], axis=1).max())
    return relative, longest if longest > still_tolerance(poses) else 0.0


def _scale(relative: np.ndarray, longest: float, scale: float | None) -> np.ndarray:
    """Divide the translations of `relative` in place by `scale`, or by `longest` if `scale` is None. If `longest` is 0,
    set them to 0, whatever `scale` is. Return `relative`."""
    if scale is not None and not 0 < scale < np.inf:
        raise CameraError(f"camera scale {scale}: expected a length above 0, in the units of the poses")
    relative[:, :3, 3] = relative[:, :3, 3] / (longest if scale is None else scale) if longest else 0
    return relative


def scaled_lens(lens: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return `lens` [4] of an 832x480 image scaled to an image of `width` x `height` pixels."""
    across, down = width / LENS_WIDTH, height / LENS_HEIGHT
    return lens * [across, down, across, down]


def pixel_rays(intrinsics: ArrayLike, height: int, width: int) -> np.ndarray:
    """Return the unit ray through each pixel in camera axes, float64 [3, 64, cells], with 8x8 pixels per cell. Do not
    write into the result: it is cached."""
    return _rays(tuple(scaled_lens(check_intrinsics(intrinsics)[0], height, width).tolist()), height, width)


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
    """Return the Pluecker map of a path with f latent frames, float32 [1, 384, f, height/8, width/8]. Raise CameraError
    for invalid arguments.

    c2w: [n, 4, 4], camera-to-world in OpenCV axes.
    intrinsics: [n, 4] or [4], in pixels of an 832x480 image.
    frames: video frames; the smaller of this and n is rounded down to 4k + 1.
    height, width: the video's size in pixels.
    chunk: latent frames per chunk; f is rounded down to a multiple.
    scale: the divisor of translations, by default the longest step.
    before: the pose before the first, by default none.
    """
    _check_size(height, width)
    poses = model_poses(check_poses(c2w), frames, chunk, scale=scale, before=before)
    return pose_embedding(poses, intrinsics, height=height, width=width)


def pose_embedding(
    poses: np.ndarray, intrinsics: ArrayLike, *, height: int, width: int, flags: np.ndarray | None = None
) -> torch.Tensor:
    """Return the model's camera input, float32 [1, 384, f, height/8, width/8], with 448 channels if `flags` are given.

    poses: [f, 4, 4], the result of `model_poses`.
    intrinsics: fx, fy, cx, cy in pixels of an 832x480 image.
    flags: [f, 4], W, A, S, D flags for action models.
    """
    _check_size(height, width)
    rays = pixel_rays(intrinsics, height, width)
    if flags is not None:
        return _action_embedding(poses, rays, flags, height, width)
    embedding = torch.empty(1, 6 * CELL * CELL, len(poses), height // CELL, width // CELL)
    write_embedding(embedding, poses, rays)
    return embedding


def write_embedding(out: torch.Tensor, poses: np.ndarray, rays: np.ndarray) -> None:
    """Write the `pose_embedding` of `poses` into `out`, float32 [1, 384, f, height/8, width/8] in host memory. `rays`:
    from `pixel_rays`."""
    embedding = out.numpy().reshape(6, CELL * CELL, len(poses), -1)
    embedding[:3] = poses[:, :3, 3].T[:, None, :, None]
    _write_directions(embedding[3:], poses, rays)


def action_embedding(
    c2w: ArrayLike, intrinsics: ArrayLike, actions: ArrayLike, *, frames: int, height: int, width: int
) -> torch.Tensor:
    """Return an action model's camera input, float32 [1, 448, f, height/8, width/8]. `actions` [n, 4]: W, A, S, D flags
    per frame. Raise CameraError for too few actions."""
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
