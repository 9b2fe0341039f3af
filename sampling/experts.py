"""Which expert predicts a step, and how the predictions for prompt and negative prompt are combined."""

from torch import Tensor

from ..errors import InputError
from ..options import BOUNDARY, PerExpert
from .schedule import TRAIN_TIMESTEPS


def is_high_noise(timestep: float, boundary: float = BOUNDARY) -> bool:
    """Whether the high-noise expert predicts this step; it also predicts one exactly at the boundary."""
    return bool(timestep >= boundary * TRAIN_TIMESTEPS)


def first_low_step(timesteps: Tensor, boundary: float = BOUNDARY) -> int:
    """Index of the low-noise expert's first step; the number of steps when it has none."""
    return sum(is_high_noise(timestep, boundary) for timestep in timesteps.tolist())


def guide(cond: Tensor, uncond: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: `uncond + scale * (cond - uncond)`."""
    return uncond + scale * (cond - uncond)


def guide_scales(guide_scale: float | tuple[float, ...]) -> PerExpert[float]:
    """The experts' guidance scales, from one number for both or from (low, high), the official order."""
    scales = guide_scale if isinstance(guide_scale, (tuple, list)) else (guide_scale,)
    if len(scales) not in (1, 2) or not all(0 <= scale < float("inf") for scale in scales):
        found = ",".join(map(str, scales))
        raise InputError(f"`guide_scale` {found}: expected one number for both experts, or LOW,HIGH; each 0 or more")
    return PerExpert(high=float(scales[-1]), low=float(scales[0]))
