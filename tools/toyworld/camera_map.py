"""The model's camera input for many paths at once: the numbers of `camera.camera_embedding`, in the model's patches."""

import torch
from torch import Tensor

from ...camera.plucker import pixel_rays
from ...options import CELL
from .render import LENS

STILL = 1e-6


def ray_patches(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Unit ray directions float32 [tokens, 3, 256] of a frame's patches: the pixels of a latent cell, then the cells of
    a patch, fastest last."""
    rows, columns = height // (2 * CELL), width // (2 * CELL)
    rays = torch.from_numpy(pixel_rays(LENS, height, width)).float()
    rays = rays.view(3, CELL * CELL, rows, 2, columns, 2).permute(2, 4, 0, 1, 3, 5)
    return rays.reshape(rows * columns, 3, 4 * CELL * CELL).to(device)


def camera_patches(poses: Tensor, rays: Tensor) -> Tensor:
    """float32 [B, tokens, 1536] of the latent frames' poses [B, f, 4, 4] and the rays of `ray_patches`."""
    turns, centres = poses[..., :3, :3], poses[..., :3, 3]
    back = turns[:, :-1].transpose(2, 3)
    relative = torch.cat([torch.eye(3, device=poses.device).expand(len(poses), 1, 3, 3), back @ turns[:, 1:]], 1)
    steps = (back @ (centres[:, 1:] - centres[:, :-1])[..., None])[..., 0]
    longest = steps.norm(dim=-1).amax(1)[:, None, None]
    steps = torch.where(longest > STILL, steps / longest.clamp(min=STILL), torch.zeros_like(steps))
    steps = torch.cat([torch.zeros_like(steps[:, :1]), steps], 1)
    directions = torch.einsum("bfij,njp->bfnip", relative, rays).flatten(3)
    origins = steps[:, :, None, :, None].expand(-1, -1, len(rays), 3, rays.shape[2]).flatten(3)
    return torch.cat([origins, directions], -1).flatten(1, 2)
