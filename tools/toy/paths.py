"""Random smooth camera paths for training and tests."""

import math

import torch
from torch import Generator, Tensor

FRAMES = 33
STEP = 0.2
"""The longest step between two latent frames in world units, for all paths: the model sees steps relative to it."""

MOST_DEGREES = (25.0, 45.0, 30.0)  # the largest turn of a path about x (tilt), y (pan) and z (roll)

STILL, SINGLE = 0.05, 0.55  # cumulated shares of paths that stand still and that make one move; the others mix moves


def random_walks(count: int, generator: Generator, frames: int) -> Tensor:
    """Return camera-to-world float32 [count, frames, 4, 4] of moves in sequence, the first pose the identity."""
    moves = [_moves(count, FRAMES - 1, generator)]
    while len(moves) * (FRAMES - 1) < frames - 1:
        back = torch.rand(count, 1, 1, generator=generator) < 1 / 3
        moves.append(torch.where(back, -moves[-1].flip(1), _moves(count, FRAMES - 1, generator)))
    return scaled_to_step(integrate(torch.cat(moves, 1)[:, : frames - 1]))


def _moves(count: int, steps: int, generator: Generator) -> Tensor:
    single, mixed = _single(count, generator), _mixed(count, generator)
    kind = torch.rand(count, 1, generator=generator)
    twist = torch.where(kind < SINGLE, single, mixed)
    twist = torch.where(kind < STILL, torch.zeros_like(twist), twist)
    later = torch.where(torch.rand(count, 1, generator=generator) < 0.3, _mixed(count, generator), twist)
    later = torch.where(kind < SINGLE, twist, later)
    return _speeds(twist, later, steps, generator)


def integrate(twists: Tensor) -> Tensor:
    """Return poses [count, f + 1, 4, 4] from twists [count, f, 6], translations and rotation vectors in camera axes."""
    turns = rotations(twists[..., 3:])
    poses = [torch.eye(4).repeat(len(twists), 1, 1)]
    for frame in range(twists.shape[1]):
        pose = poses[-1].clone()
        pose[:, :3, 3] += (pose[:, :3, :3] @ twists[:, frame, :3, None])[..., 0]
        pose[:, :3, :3] = pose[:, :3, :3] @ turns[:, frame]
        poses.append(pose)
    return torch.stack(poses, 1)


def scaled_to_step(poses: Tensor) -> Tensor:
    """Scale paths [count, f, 4, 4] so that the longest step between latent frames is STEP."""
    centres = poses[:, ::4, :3, 3]
    longest = (centres[:, 1:] - centres[:, :-1]).norm(dim=-1).amax(1)
    scale = torch.where(longest > 1e-6, STEP / longest.clamp(min=1e-6), torch.zeros_like(longest))
    poses = poses.clone()
    poses[:, :, :3, 3] *= scale[:, None, None]
    return poses


def rotations(vectors: Tensor) -> Tensor:
    """Return rotations [..., 3, 3] from rotation vectors [..., 3] in radians."""
    angle = vectors.norm(dim=-1)[..., None, None].clamp(min=1e-12)
    x, y, z = vectors.unbind(-1)
    zero = torch.zeros_like(x)
    axis = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3)) / angle
    return torch.eye(3, dtype=vectors.dtype) + angle.sin() * axis + (1 - angle.cos()) * (axis @ axis)


def _amounts(count: int, generator: Generator) -> Tensor:
    share = 0.2 + 0.8 * torch.rand(count, 3, generator=generator)
    sign = torch.randint(0, 2, (count, 3), generator=generator) * 2 - 1
    return share * sign * torch.tensor(MOST_DEGREES) * math.pi / 180


def _single(count: int, generator: Generator) -> Tensor:
    """Return twists [count, 6] with one component each."""
    sign = (torch.randint(0, 2, (count, 3), generator=generator) * 2 - 1).float()
    axis = torch.randint(0, 6, (count,), generator=generator)
    return torch.cat([sign, _amounts(count, generator)], 1) * torch.nn.functional.one_hot(axis, 6)


def _mixed(count: int, generator: Generator) -> Tensor:
    """Return twists [count, 6]: a mostly level translation, and turns about some axes, mostly yaw."""
    direction = torch.randn(count, 3, generator=generator) * torch.tensor([1.0, 0.4, 1.0])
    turning = torch.rand(count, 3, generator=generator) < torch.tensor([0.4, 0.7, 0.25])
    turns = _amounts(count, generator) * turning * torch.rand(count, 1, generator=generator)
    moving = torch.rand(count, 1, generator=generator) < 0.85
    return torch.cat([torch.nn.functional.normalize(direction, dim=-1) * moving, turns], 1)


def _speeds(first: Tensor, later: Tensor, steps: int, generator: Generator) -> Tensor:
    """Return the twist of every step, [count, steps, 6], from `first` to `later`, at an even speed or eased."""
    time = (torch.arange(steps) + 0.5) / steps
    blend = (time * time * (3 - 2 * time))[None, :, None]
    soft = torch.rand(len(first), 1, generator=generator) < 0.3
    speed = torch.where(soft, math.pi / 2 * torch.sin(math.pi * time), torch.ones(steps)) / steps
    return (first[:, None] * (1 - blend) + later[:, None] * blend) * speed[..., None]
