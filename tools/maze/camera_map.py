"""The model's camera input of what is asked of the camera from one latent frame to the next."""

import torch
from torch import Tensor

from ..toyworld.paths import STEP

STILL = 1e-5


def steps_of(poses: Tensor) -> Tensor:
    """Poses [B, f, 4, 4] of latent frames, each in the frame of the one before it, translations in units of STEP."""
    turns, centres = poses[..., :3, :3], poses[..., :3, 3]
    steps = torch.eye(4, device=poses.device).repeat(*poses.shape[:2], 1, 1)
    steps[:, 1:, :3, :3] = turns[:, :-1].mT @ turns[:, 1:]
    moved = (turns[:, :-1].mT @ (centres[:, 1:] - centres[:, :-1])[..., None])[..., 0] / STEP
    steps[:, 1:, :3, 3] = torch.where(moved.norm(dim=-1, keepdim=True) > STILL, moved, torch.zeros_like(moved))
    return steps


def camera_patches(steps: Tensor, rays: Tensor) -> Tensor:
    """float32 [B, tokens, 1536] of the `steps_of` a path [B, f, 4, 4] and the rays of `ray_patches`."""
    directions = torch.einsum("bfij,njp->bfnip", steps[..., :3, :3], rays).flatten(3)
    origins = steps[:, :, None, :3, 3, None].expand(-1, -1, len(rays), 3, rays.shape[2]).flatten(3)
    return torch.cat([origins, directions], -1).flatten(1, 2)
