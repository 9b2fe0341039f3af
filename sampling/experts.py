"""The choice of the expert that predicts each step, and classifier-free guidance."""

from torch import Tensor

from ..errors import InputError
from ..options import BOUNDARY, PerExpert
from .schedule import TRAIN_TIMESTEPS


def is_high_noise(timestep: float, boundary: float = BOUNDARY) -> bool:
    """Return whether the high-noise expert predicts the step: `timestep` (0 to 1000) is at least 1000 times
    `boundary`."""
    return bool(timestep >= boundary * TRAIN_TIMESTEPS)


def first_low_step(timesteps: Tensor, boundary: float = BOUNDARY) -> int:
    """Return the index of the low-noise expert's first step, or the number of all steps if it has none."""
    return sum(is_high_noise(timestep, boundary) for timestep in timesteps.tolist())


def guide(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """Return the prediction with classifier-free guidance."""
    return uncond + scale * (cond - uncond)


def guide_scales(guide_scale: float | tuple[float, ...]) -> PerExpert[float]:
    """Return each expert's guidance scale from one number for both or a pair (low-noise, high-noise). Raises InputError
    for invalid numbers."""
    scales = guide_scale if isinstance(guide_scale, (tuple, list)) else (guide_scale,)
    if len(scales) not in (1, 2) or not all(0 <= scale < float("inf") for scale in scales):
        found = ",".join(map(str, scales))
        raise InputError(f"`guide_scale` {found}: expected one number for both experts, or LOW,HIGH; each 0 or more")
    return PerExpert(high=float(scales[-1]), low=float(scales[0]))
