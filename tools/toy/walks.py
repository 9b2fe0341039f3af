"""Random walks as people make them with keys and mouse, and the model's camera input for a path."""

import math

import torch
from torch import Generator, Tensor

from ...camera.plucker import pixel_rays
from ...options import CELL
from . import paths
from .paths import STEP, rotations
from .render import LENS

TURN = 2.0 * math.pi / 180  # radians that a key turns the camera by in a frame
MOST_PITCH, FRAMES_TO_SPEED = 0.6, 3  # radians up and down in a walk; frames from standing to full speed
STILL = 1e-5  # the length of a step that counts as none
SMOOTH = 0.2  # the share of the walks that are moves of `paths`, one after another


def random_walks(count: int, generator: Generator, frames: int) -> Tensor:
    """Return walks, camera-to-world float32 [count, frames, 4, 4] in OpenCV axes; the first pose is the identity."""
    smooth, keyed = paths.random_walks(count, generator, frames), key_walks(count, generator, frames)
    return torch.where(torch.rand(count, 1, 1, 1, generator=generator) < SMOOTH, smooth, keyed)


def key_walks(count: int, generator: Generator, frames: int) -> Tensor:
    """Return walks by held keys or the mouse. One wish in four reverses the previous one."""
    speeds, wish, held = torch.zeros(count, 4), torch.zeros(count, 4), torch.zeros(count)
    left, angles = torch.zeros(count), torch.zeros(count, 2)
    place, poses = torch.zeros(count, 3), [torch.eye(4).repeat(count, 1, 1)]
    fastest = torch.tensor([STEP / 4, STEP / 4, TURN, TURN])
    for _ in range(frames - 1):
        new = left <= 0
        back = torch.rand(count, generator=generator) < 0.25
        length = torch.where(back & (held > 0), held, 4 + (36 * torch.rand(count, generator=generator)).floor())
        other = torch.where(back[:, None], -wish, _wishes(angles[:, 1], generator))
        wish, held = torch.where(new[:, None], other, wish), torch.where(new, length, held)
        left = torch.where(new, length, left) - 1
        most = torch.maximum(fastest, wish.abs()) / FRAMES_TO_SPEED
        speeds = speeds + torch.minimum(torch.maximum(wish - speeds, -most), most)
        angles = angles + speeds[:, 2:]
        angles[:, 1].clamp_(-MOST_PITCH, MOST_PITCH)
        sine, cosine = angles[:, 0].sin(), angles[:, 0].cos()
        (ahead, right), still = speeds[:, :2].unbind(1), torch.zeros(count)
        place = place + torch.stack([ahead * sine + right * cosine, still, ahead * cosine - right * sine], 1)
        poses.append(_pose(place, angles))
    return torch.stack(poses, 1)


def _wishes(pitch: Tensor, generator: Generator) -> Tensor:
    """Return forward, right, yaw and pitch [n, 4] of a frame. A camera that looks up or down often levels."""

    def chance(*shares: float) -> Tensor:
        bounds = torch.tensor(shares).cumsum(0)
        return (torch.rand(len(pitch), 1, generator=generator) > bounds).sum(1)

    walk = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0.7, 0.7], [0, 0]])[chance(0.5, 0.1, 0.06, 0.06, 0.04)]
    mouse = 0.3 + 1.6 * torch.rand(len(pitch), generator=generator)
    turn = torch.tensor([0.0, 1, -1])[chance(0.4, 0.3)] * torch.where(mouse < 1.4, torch.ones_like(mouse), mouse)
    tilt = torch.stack([torch.zeros_like(pitch), -pitch.sign(), torch.ones_like(pitch), -torch.ones_like(pitch)], 1)
    tilt = tilt.gather(1, chance(0.55, 0.25, 0.1)[:, None])[:, 0]
    tilt = torch.where(tilt == -pitch.sign(), tilt * (pitch.abs() / (8 * TURN)).clamp(max=1), tilt)
    return torch.cat([walk * (STEP / 4), torch.stack([turn, tilt], 1) * TURN], 1)


def _pose(place: Tensor, angles: Tensor) -> Tensor:
    pose, still = torch.eye(4).repeat(len(place), 1, 1), torch.zeros(len(place))
    yaw, pitch = angles.unbind(1)
    pose[:, :3, :3] = rotations(torch.stack([still, yaw, still], 1)) @ rotations(torch.stack([pitch, still, still], 1))
    pose[:, :3, 3] = place
    return pose


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
    """Return unit rays float32 [tokens, 3, 256] of a frame's patches: pixels of a cell, then cells of a patch."""
    rows, columns = height // (2 * CELL), width // (2 * CELL)
    rays = torch.from_numpy(pixel_rays(LENS, height, width)).float()
    rays = rays.view(3, CELL * CELL, rows, 2, columns, 2).permute(2, 4, 0, 1, 3, 5)
    return rays.reshape(rows * columns, 3, 4 * CELL * CELL).to(device)
