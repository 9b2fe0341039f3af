"""Who predicts when, and how the two CFG branches become one prediction."""

import torch

from ..errors import InputError
from .schedule import TRAIN_TIMESTEPS

BOUNDARY = 0.947


def is_high_noise(timestep: float, boundary: float = BOUNDARY) -> bool:
    """True where the high-noise expert predicts; a timestep right on the boundary is high."""
    return bool(timestep >= boundary * TRAIN_TIMESTEPS)


def first_low_step(timesteps: torch.Tensor, boundary: float = BOUNDARY) -> int:
    """Index of the low-noise expert's first step; the number of steps when it has none."""
    return sum(is_high_noise(timestep, boundary) for timestep in timesteps.tolist())


def guide(cond: torch.Tensor, uncond: torch.Tensor, scale: float) -> torch.Tensor:
    """Classifier-free guidance: `uncond + scale * (cond - uncond)`."""
    return uncond + scale * (cond - uncond)


def guide_scales(guide_scale: float | tuple[float, ...]) -> tuple[float, float]:
    """(low, high) in the official order; one number serves both experts."""
    scales = guide_scale if isinstance(guide_scale, (tuple, list)) else (guide_scale,)
    if len(scales) not in (1, 2) or not all(0 <= scale < float("inf") for scale in scales):
        raise InputError(f"guide scale must be one number or LOW,HIGH, each 0 or more, not {guide_scale!r}")
    return float(scales[0]), float(scales[-1])
