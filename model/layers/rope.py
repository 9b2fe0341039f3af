"""Rotary position embedding (RoPE) of tokens on a grid of frames, rows and columns."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..host_memory import upload

THETA = 10000.0


class RopeScale(NamedTuple):
    """The linear change of positions, position * scale + shift, for each axis: frame, row and column."""

    scales: tuple[float, float, float] = (1.0, 1.0, 1.0)
    shifts: tuple[float, float, float] = (0.0, 0.0, 0.0)


AS_TRAINED = RopeScale()


@lru_cache(maxsize=4)
def rope_table(
    grid: tuple[int, int, int], head_dim: int, device: torch.device, first_frame: int = 0, scale: RopeScale = AS_TRAINED
) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of every token's RoPE angles, fp32 [frames*rows*columns, head_dim/2] each.

    grid: the number of frames, rows and columns of tokens.
    first_frame: the grid's first latent frame, from the start of the video.
    """
    side = 2 * (head_dim // 6)
    widths = head_dim - 2 * side, side, side
    starts = first_frame, 0, 0
    waves: tuple[list[Tensor], list[Tensor]] = ([], [])
    for axis, (start, length, width, factor, shift) in enumerate(zip(starts, grid, widths, *scale, strict=True)):
        rates = THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(start, start + length, dtype=torch.float64) * factor + shift, rates)
        shape = [1, 1, 1, angles.shape[1]]
        shape[axis] = length
        for parts, wave in zip(waves, (torch.cos, torch.sin), strict=True):
            parts.append(upload(wave(angles), device, torch.float32).view(shape).expand(*grid, -1))
    cos, sin = (torch.cat(parts, dim=-1).flatten(0, 2) for parts in waves)
    return cos, sin
