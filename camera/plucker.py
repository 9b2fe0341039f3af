"""From a camera path to what the model is conditioned on: a ray for every pixel of every latent frame.

Equal to the official `get_plucker_embeddings` and what leads up to it; computed in float64, written once as
float32 straight into the folded layout.
"""

import numpy as np
import torch

from ..errors import CameraError
from .poses import LENS_HEIGHT, LENS_WIDTH, check_actions, check_intrinsics, check_poses, frame_count
from .rotation import interpolate, nearest_rotation

CELL = 8  # pixels of a latent cell, each way
STILL_ABSOLUTE, STILL_RELATIVE = 1e-12, 1e-9


def latent_poses(c2w: np.ndarray, frames: int, chunk: int = 1) -> np.ndarray:
    """The poses [f, 4, 4] of a path's latent frames: every fourth one of the 4n+1 frames that are used.

    Where latent frames are cut to whole chunks, all of the path is spread evenly over those that remain.
    """
    used, kept = (frame_count(frames, len(c2w), size) for size in (1, chunk))
    if kept == used:
        return c2w[:used:4].copy()
    return interpolate(c2w[:used], np.linspace(0, used - 1, (kept - 1) // 4 + 1))


def framewise_relative(c2w: np.ndarray) -> np.ndarray:
    """Each pose [f, 4, 4] in the frame of the one before it; the first is the identity."""
    relative = np.tile(np.eye(4), (len(c2w), 1, 1))
    to_previous = np.swapaxes(c2w[:-1, :3, :3], 1, 2)
    relative[1:, :3, :3] = to_previous @ c2w[1:, :3, :3]
    relative[1:, :3, 3:] = to_previous @ (c2w[1:, :3, 3:] - c2w[:-1, :3, 3:])
    return relative


def model_poses(c2w: np.ndarray, frames: int, chunk: int = 1, *, scale: float | None = None, before=None) -> np.ndarray:
    """What the model receives of a path [n, 4, 4]: float64 [f, 4, 4], frame to frame, the longest step of length 1.

    `scale` and `before` as in `camera_embedding`.
    """
    if scale is not None and not 0 < scale < np.inf:
        raise CameraError(f"camera scale {scale}: expected a length above 0, in the units of the poses")
    before = None if before is None else check_poses([before], "the pose before")[0]
    relative, longest = _steps(c2w, frames, chunk, before)
    relative[:, :3, 3] = relative[:, :3, 3] / (longest if scale is None else scale) if longest else 0
    return relative


def continued_poses(c2w, latent_frames: int, *, before: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """A path [n, 4, 4] that goes on where a video ended, as (`model_poses` [f, 4, 4], world poses [f, 4, 4]).

    The path is moved so that it begins at `before` [4, 4], the pose of the video's last latent frame, and spread evenly
    over the `latent_frames` that come. Its translations are divided by `scale`, the first path's; 0 (a camera that
    stood still) takes this path's own longest step. Raises CameraError.
    """
    c2w = check_poses(c2w)
    moved = before @ np.linalg.inv(c2w[0]) @ c2w
    sampled = interpolate(moved, np.linspace(0, len(c2w) - 1, latent_frames + 1)[1:])
    poses = model_poses(sampled.repeat(4, axis=0)[3:], 4 * latent_frames - 3, scale=scale or None, before=before)
    return poses, sampled


def longest_step(c2w, *, frames: int, chunk: int = 1) -> float:
    """The longest step between two latent frames of a path, in world units: the scale of `camera_embedding`.

    0 for a camera that stands still. Raises CameraError.
    """
    return _steps(check_poses(c2w), frames, chunk, None)[1]


def _steps(c2w: np.ndarray, frames: int, chunk: int, before: np.ndarray | None) -> tuple[np.ndarray, float]:
    """Latent frames [f, 4, 4], each seen from the one before, and their longest translation.

    Rounding left over from how the path was made is no step: it must not be blown up to length 1.
    """
    sampled = latent_poses(c2w, frames, chunk)
    poses = sampled if before is None else np.concatenate([before[None], sampled])
    poses[:, :3, :3] = nearest_rotation(poses[:, :3, :3])
    relative = framewise_relative(poses)[-len(sampled) :]
    longest = float(np.linalg.norm(relative[:, :3, 3], axis=1).max())
    still = STILL_ABSOLUTE + STILL_RELATIVE * np.abs(poses[:, :3, 3]).max()
    return relative, longest if longest > still else 0.0


def scaled_intrinsics(intrinsics: np.ndarray, height: int, width: int) -> np.ndarray:
    """The first row of `intrinsics` in pixels of a height x width image."""
    across, down = width / LENS_WIDTH, height / LENS_HEIGHT
    return intrinsics[0] * [across, down, across, down]


def pixel_rays(intrinsics, height: int, width: int) -> np.ndarray:
    """Unit ray directions of the pixel centres in camera axes, [3, 64, cells]: row-major inside a cell, then cells."""
    fx, fy, cx, cy = scaled_intrinsics(check_intrinsics(intrinsics), height, width)
    rays = np.ones((3, height, width))
    rays[0] = (np.arange(width) + 0.5 - cx) / fx
    rays[1] = ((np.arange(height) + 0.5 - cy) / fy)[:, None]
    rays /= np.linalg.norm(rays, axis=0)
    cells = rays.reshape(3, height // CELL, CELL, width // CELL, CELL).transpose(0, 2, 4, 1, 3)
    return cells.reshape(3, CELL * CELL, -1)


def camera_embedding(
    c2w,
    intrinsics,
    *,
    frames: int,
    height: int,
    width: int,
    chunk: int = 1,
    scale: float | None = None,
    before=None,
) -> torch.Tensor:
    """Pluecker map (ray origin, unit ray direction) of a path, folded to latent cells.

    `c2w` [n, 4, 4] camera-to-world, OpenCV axes; `intrinsics` [n, 4] or [4] at 832x480, first row used; `height` and
    `width` in pixels. Fewer poses than `frames` shorten the result: see `frame_count`. A causal model wants `chunk` 3:
    latent frames are cut to a multiple of it, and all of the path is spread over those that remain.

    Translations are divided by `scale`, or else by the path's longest step (`longest_step`), as officially. A later
    part of a path goes on at the speed of the first when it is given the first part's `scale`, and `before` [4, 4],
    the pose of the last latent frame that came before; without it the first pose is the identity. A path that is
    steered has no longest step beforehand: give the length of four frames at full speed.

    Returns float32 [1, 384, f, height/8, width/8], channel = component * 64 + row * 8 + column. Raises CameraError.
    """
    _check_size(height, width)
    poses = model_poses(check_poses(c2w), frames, chunk, scale=scale, before=before)
    return pose_embedding(poses, intrinsics, height=height, width=width)


def pose_embedding(poses: np.ndarray, intrinsics, *, height: int, width: int) -> torch.Tensor:
    """`camera_embedding` of latent frames [f, 4, 4] as `model_poses` gives them: all of a video's, or some of them."""
    _check_size(height, width)
    embedding = np.empty((6, CELL * CELL, len(poses), height // CELL * (width // CELL)), np.float32)
    embedding[:3] = poses[:, :3, 3].T[:, None, :, None]
    _write_directions(embedding[3:], poses, pixel_rays(intrinsics, height, width))
    return _folded(embedding, height, width)


def action_embedding(c2w, intrinsics, actions, *, frames: int, height: int, width: int) -> torch.Tensor:
    """Ray directions (3 values a pixel) and W, A, S, D flags (4 values) for a 7-value ("act") checkpoint.

    `actions` [n, 4], one row a frame, every fourth used. Otherwise as `camera_embedding`.
    Returns float32 [1, 448, f, height/8, width/8]. Raises CameraError.
    """
    _check_size(height, width)
    poses = model_poses(check_poses(c2w), frames)
    flags = check_actions(actions)[::4][: len(poses)]
    if len(flags) < len(poses):
        raise CameraError(f"actions: {len(actions)} rows, expected at least {4 * len(poses) - 3}, as many as poses")
    embedding = np.empty((7, CELL * CELL, len(poses), height // CELL * (width // CELL)), np.float32)
    _write_directions(embedding[:3], poses, pixel_rays(intrinsics, height, width))
    embedding[3:] = flags.T[:, None, :, None]
    return _folded(embedding, height, width)


def _check_size(height: int, width: int) -> None:
    if height < CELL or width < CELL or height % CELL or width % CELL:
        raise CameraError(f"camera for a {width}x{height} video: both sides must be multiples of {CELL}")


def _write_directions(out: np.ndarray, poses: np.ndarray, rays: np.ndarray) -> None:
    rotations = poses[:, :3, :3].transpose(1, 0, 2).reshape(-1, 3)
    for pixel in range(rays.shape[1]):  # one pixel of the cells at a time: the float64 product stays small
        out[:, pixel] = (rotations @ rays[:, pixel]).reshape(3, len(poses), -1)


def _folded(embedding: np.ndarray, height: int, width: int) -> torch.Tensor:
    channels, latent_frames = embedding.shape[0] * CELL * CELL, embedding.shape[2]
    return torch.from_numpy(embedding.reshape(1, channels, latent_frames, height // CELL, width // CELL))
