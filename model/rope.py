"""Rotary positions of the token grid."""

from functools import lru_cache

import torch
from torch import Tensor

THETA = 10000.0


@lru_cache(maxsize=4)
def rope_table(grid: tuple[int, int, int], head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every token's angles, fp32 [frames*rows*columns, head_dim/2] each.

    `grid` counts tokens. A head's channels are shared out over frame, row and column as d-4*(d//6), 2*(d//6) and
    2*(d//6); angles are fp64, so there is no limit to the frames. The last four tables are kept for both experts."""
    side = 2 * (head_dim // 6)
    angles = [
        _spread(_angles(length, width), axis, grid)
        for axis, (length, width) in enumerate(zip(grid, (head_dim - 2 * side, side, side), strict=True))
    ]
    table = torch.cat(angles, dim=-1).flatten(0, 2)
    return table.cos().to(device, torch.float32), table.sin().to(device, torch.float32)


def _angles(length: int, width: int) -> Tensor:
    rates = THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(length, dtype=torch.float64), rates)


def _spread(angles: Tensor, axis: int, grid: tuple[int, int, int]) -> Tensor:
    shape = [1, 1, 1, angles.shape[1]]
    shape[axis] = angles.shape[0]
    return angles.view(shape).expand(*grid, -1)
