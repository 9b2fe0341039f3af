"""Rotary positions of the token grid."""

from functools import lru_cache

import torch
from torch import Tensor

THETA = 10000.0


@lru_cache(maxsize=4)
def rope_table(
    grid: tuple[int, int, int], head_dim: int, device: torch.device, first_frame: int = 0
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every token's angles, fp32 [frames*rows*columns, head_dim/2] each.

    `grid` counts tokens, from latent frame `first_frame` of the video on. A head's channels are shared out over frame,
    row and column as d-4*(d//6), 2*(d//6) and 2*(d//6). Angles are fp64, so a video may have any number of frames.
    The last four tables are kept for both experts."""
    side = 2 * (head_dim // 6)
    widths = head_dim - 2 * side, side, side
    starts = first_frame, 0, 0
    angles = [_angles(*axis) for axis in zip(starts, grid, widths, strict=True)]
    cos, sin = (_whole([wave(part) for part in angles], grid, device) for wave in (torch.cos, torch.sin))
    return cos, sin


def _whole(parts: list[Tensor], grid: tuple[int, int, int], device: torch.device) -> Tensor:
    spread = [_spread(part.to(device, torch.float32), axis, grid) for axis, part in enumerate(parts)]
    return torch.cat(spread, dim=-1).flatten(0, 2)


def _angles(start: int, length: int, width: int) -> Tensor:
    rates = THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(start, start + length, dtype=torch.float64), rates)


def _spread(part: Tensor, axis: int, grid: tuple[int, int, int]) -> Tensor:
    shape = [1, 1, 1, part.shape[1]]
    shape[axis] = part.shape[0]
    return part.view(shape).expand(*grid, -1)
