"""The model's camera input for the steps of a camera between latent frames."""

import torch
from torch import Tensor

from ...camera.plucker import pixel_rays
from ...options import CELL
from .paths import STEP
from .render import LENS

STILL = 1e-5


def steps_of(poses: Tensor) -> Tensor:
    """Return poses [B, f, 4, 4] relative to the previous one, with translations in units of STEP."""
    turns, centres = poses[..., :3, :3], poses[..., :3, 3]
    steps = torch.eye(4, device=poses.device).repeat(*poses.shape[:2], 1, 1)
    steps[:, 1:, :3, :3] = turns[:, :-1].mT @ turns[:, 1:]
    moved = (turns[:, :-1].mT @ (centres[:, 1:] - centres[:, :-1])[..., None])[..., 0] / STEP
    steps[:, 1:, :3, 3] = torch.where(moved.norm(dim=-1, keepdim=True) > STILL, moved, torch.zeros_like(moved))
    return steps


def camera_patches(steps: Tensor, rays: Tensor) -> Tensor:
    """Return the camera input float32 [B, tokens, 1536] from `steps_of` a path and `ray_patches`."""
    directions = torch.einsum("bfij,njp->bfnip", steps[..., :3, :3], rays).flatten(3)
    origins = steps[:, :, None, :3, 3, None].expand(-1, -1, len(rays), 3, rays.shape[2]).flatten(3)
    return torch.cat([origins, directions], -1).flatten(1, 2)


def ray_patches(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Return unit ray directions float32 [tokens, 3, 256] of a frame's patches: pixels of a cell, then cells of a
    patch."""
    rows, columns = height // (2 * CELL), width // (2 * CELL)
    rays = torch.from_numpy(pixel_rays(LENS, height, width)).float()
    rays = rays.view(3, CELL * CELL, rows, 2, columns, 2).permute(2, 4, 0, 1, 3, 5)
    return rays.reshape(rows * columns, 3, 4 * CELL * CELL).to(device)
