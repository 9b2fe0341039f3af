"""Ground truth: a textured room seen by the cameras of a path, to measure what the measuring itself is off by."""

from functools import cache

import numpy as np

SHAPE = np.array([1.0, 0.6, 1.3])
"""How far the walls to the sides, floor and ceiling, and the walls ahead and behind are, as shares of the reach."""
TILE = 512
GRAIN = 3.0
"""Pixels of the picture that a texel of a wall takes."""


def render_room(c2w: np.ndarray, lens: np.ndarray, height: int, width: int, reach: float) -> list[np.ndarray]:
    """What cameras [n, 4, 4] see of a room through a lens [4] in pixels: n pictures uint8 [H, W].

    The room is built round all cameras, with `reach` world units from them to its walls.
    """
    positions = c2w[:, :3, 3]
    walls = np.stack([positions.min(0) - reach * SHAPE, positions.max(0) + reach * SHAPE]).astype(np.float32)
    columns, rows = np.arange(width) + 0.5, np.arange(height) + 0.5
    across, down = np.meshgrid((columns - lens[2]) / lens[0], (rows - lens[3]) / lens[1])
    rays = np.stack([across, down, np.ones_like(across)]).astype(np.float32)
    texels, tile = float(lens[0]) / GRAIN / reach, _tile()
    return [_seen(pose.astype(np.float32), rays, walls, texels, tile) for pose in c2w]


def _seen(pose: np.ndarray, rays: np.ndarray, walls: np.ndarray, texels: float, tile: np.ndarray) -> np.ndarray:
    """One picture: rays [3, H, W] meet the nearest wall, whose two coordinates there say which texel is seen."""
    import cv2

    eye = pose[:3, 3]
    rays = np.tensordot(pose[:3, :3], rays, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = [np.where(ray > 0, high, low) / ray for ray, low, high in zip(rays, *(walls - eye), strict=True)]
    met = np.fmin(np.fmin(far[0], far[1]), far[2])
    x, y, z = (at + met * ray for ray, at in zip(rays, eye, strict=True))
    beside, ahead = met == far[0], met == far[2]
    u, v = np.where(beside, z, x) * np.float32(texels), np.where(beside | ahead, y, z) * np.float32(texels)
    return cv2.remap(tile, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)


@cache
def _tile() -> np.ndarray:
    """A texture uint8 [TILE, TILE] with detail of several sizes; its edges fit together. Nobody writes into it."""
    from scipy.ndimage import gaussian_filter

    noise, texture = np.random.default_rng(0), np.zeros((TILE, TILE))
    for size in (1.0, 3.0, 9.0):
        layer = gaussian_filter(noise.standard_normal((TILE, TILE)), size, mode="wrap")
        texture += layer / layer.std()
    return np.clip(128 + 35 * texture, 0, 255).astype(np.uint8)
