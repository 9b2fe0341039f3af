"""From a camera path to what the model is conditioned on: a ray for every pixel of every latent frame.

Equal to the official `get_plucker_embeddings` and what leads up to it; computed in float64, written once as
float32 straight into the folded layout.
"""

import numpy as np
import torch

from ..errors import CameraError
from .poses import LENS_HEIGHT, LENS_WIDTH, check_intrinsics, check_poses, frame_count
from .rotation import nearest_rotation

CELL = 8  # pixels of a latent cell, each way
STILL_ABSOLUTE, STILL_RELATIVE = 1e-12, 1e-9


def latent_poses(c2w: np.ndarray, frames: int) -> np.ndarray:
    """The poses [f, 4, 4] the model sees of a path: every fourth one of the 4n+1 frames that are used."""
    return c2w[: frame_count(frames, len(c2w)) : 4]


def framewise_relative(c2w: np.ndarray) -> np.ndarray:
    """Each pose [f, 4, 4] in the frame of the one before it; the first is the identity."""
    relative = np.tile(np.eye(4), (len(c2w), 1, 1))
    to_previous = np.swapaxes(c2w[:-1, :3, :3], 1, 2)
    relative[1:, :3, :3] = to_previous @ c2w[1:, :3, :3]
    relative[1:, :3, 3:] = to_previous @ (c2w[1:, :3, 3:] - c2w[:-1, :3, 3:])
    return relative


def normalise_translation(relative: np.ndarray, extent: float) -> np.ndarray:
    """Translations divided by the largest of their norms, in place.

    A camera that stands still in a world of size `extent` keeps zeros: rounding left over from how the path was
    made must not be blown up to a full step.
    """
    largest = np.linalg.norm(relative[:, :3, 3], axis=1).max()
    still = largest <= STILL_ABSOLUTE + STILL_RELATIVE * extent
    relative[:, :3, 3] = 0 if still else relative[:, :3, 3] / largest
    return relative


def model_poses(c2w: np.ndarray, frames: int) -> np.ndarray:
    """What the model receives of a path [n, 4, 4]: float64 [f, 4, 4], frame to frame, longest step of length 1."""
    sampled = latent_poses(c2w, frames).copy()
    sampled[:, :3, :3] = nearest_rotation(sampled[:, :3, :3])
    return normalise_translation(framewise_relative(sampled), np.abs(sampled[:, :3, 3]).max())


def scaled_intrinsics(intrinsics: np.ndarray, height: int, width: int) -> np.ndarray:
    """The first row of `intrinsics` in pixels of a height x width image."""
    across, down = width / LENS_WIDTH, height / LENS_HEIGHT
    return intrinsics[0] * [across, down, across, down]


def pixel_rays(lens: np.ndarray, height: int, width: int) -> np.ndarray:
    """Unit ray directions of the pixel centres in camera axes, [3, 64, cells]: row-major inside a cell, then cells."""
    fx, fy, cx, cy = lens
    rays = np.ones((3, height, width))
    rays[0] = (np.arange(width) + 0.5 - cx) / fx
    rays[1] = ((np.arange(height) + 0.5 - cy) / fy)[:, None]
    rays /= np.linalg.norm(rays, axis=0)
    cells = rays.reshape(3, height // CELL, CELL, width // CELL, CELL).transpose(0, 2, 4, 1, 3)
    return cells.reshape(3, CELL * CELL, -1)


def camera_embedding(c2w, intrinsics, *, frames: int, height: int, width: int) -> torch.Tensor:
    """Pluecker map (ray origin, unit ray direction) of a path, folded to latent cells.

    `c2w` [n, 4, 4] camera-to-world, OpenCV axes; `intrinsics` [n, 4] or [4] at 832x480, first row used; `height` and
    `width` in pixels. Fewer poses than `frames` shorten the result: see `frame_count`.
    Returns float32 [1, 384, f, height/8, width/8], channel = component * 64 + row * 8 + column. Raises CameraError.
    """
    poses, lens = _checked(c2w, intrinsics, frames, height, width)
    embedding = np.empty((6, CELL * CELL, len(poses), height // CELL * (width // CELL)), np.float32)
    embedding[:3] = poses[:, :3, 3].T[:, None, :, None]
    _write_directions(embedding[3:], poses, pixel_rays(lens, height, width))
    return _folded(embedding, height, width)


def action_embedding(c2w, intrinsics, actions, *, frames: int, height: int, width: int) -> torch.Tensor:
    """Ray directions (3 values a pixel) and W, A, S, D flags (4 values) for a 7-value ("act") checkpoint.

    `actions` [n, 4], one row a frame, every fourth used. Otherwise as `camera_embedding`.
    Returns float32 [1, 448, f, height/8, width/8]. Raises CameraError.
    """
    poses, lens = _checked(c2w, intrinsics, frames, height, width)
    flags = _checked_actions(actions, len(poses))
    embedding = np.empty((7, CELL * CELL, len(poses), height // CELL * (width // CELL)), np.float32)
    _write_directions(embedding[:3], poses, pixel_rays(lens, height, width))
    embedding[3:] = flags.T[:, None, :, None]
    return _folded(embedding, height, width)


def _checked(c2w, intrinsics, frames: int, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    if height < CELL or width < CELL or height % CELL or width % CELL:
        raise CameraError(f"camera for a {width}x{height} video: both sides must be multiples of {CELL}")
    return model_poses(check_poses(c2w), frames), scaled_intrinsics(check_intrinsics(intrinsics), height, width)


def _checked_actions(actions, latent_frames: int) -> np.ndarray:
    actions = np.asarray(actions)
    if actions.ndim != 2 or actions.shape[1] != 4 or actions.dtype.kind not in "fiub":
        raise CameraError(f"actions: {actions.dtype} {list(actions.shape)}, expected numbers [n, 4] (W, A, S, D)")
    if len(actions[::4]) < latent_frames or not np.isfinite(actions.astype(np.float64)).all():
        expected = f"expected {latent_frames * 4 - 3} finite ones, as many as poses"
        raise CameraError(f"actions: {len(actions)} rows, {expected}")
    return actions[::4][:latent_frames]


def _write_directions(out: np.ndarray, poses: np.ndarray, rays: np.ndarray) -> None:
    rotations = poses[:, :3, :3].transpose(1, 0, 2).reshape(-1, 3)
    for pixel in range(rays.shape[1]):  # one pixel of the cells at a time: the float64 product stays small
        out[:, pixel] = (rotations @ rays[:, pixel]).reshape(3, len(poses), -1)


def _folded(embedding: np.ndarray, height: int, width: int) -> torch.Tensor:
    channels, latent_frames = embedding.shape[0] * CELL * CELL, embedding.shape[2]
    return torch.from_numpy(embedding.reshape(1, channels, latent_frames, height // CELL, width // CELL))
