"""The flow-matching schedules of Wan: shifted sigmas for the solver, and integer timesteps for the model."""

import numpy as np
import torch

from ..errors import InputError
from ..options import SHIFT

# UniPC's sigmas begin at float32(0.999): without this rounding some truncated timesteps would differ.
SIGMA_MAX = {"unipc": float(np.float32(0.999)), "dpmpp": 1.0}
TRAIN_TIMESTEPS = 1000


def flow_sigmas(steps: int, shift: float, solver: str = "unipc") -> torch.Tensor:
    """Return the noise levels, float32 [steps + 1], falling to 0. A larger `shift` raises them. `solver` decides the
    first level. Raises InputError for invalid arguments."""
    return torch.from_numpy(np.append(_shifted(steps, shift, solver), 0.0)).float()


def flow_timesteps(steps: int, shift: float, solver: str = "unipc") -> torch.Tensor:
    """Return the model's timestep for each step, int64 [steps]. Consecutive timesteps may be equal."""
    return torch.from_numpy(_shifted(steps, shift, solver) * TRAIN_TIMESTEPS).long()


def _shifted(steps: int, shift: float, solver: str) -> np.ndarray:
    if solver not in SIGMA_MAX:
        raise InputError(f"solver {solver!r} is not known; use one of {sorted(SIGMA_MAX)}")
    if steps < 1:
        raise InputError(f"`sampling_steps` {steps}: at least 1 is expected")
    if not 0 < shift < float("inf"):
        raise InputError(f"`shift` {shift}: a number over 0 is expected, such as {SHIFT}")
    base = np.linspace(SIGMA_MAX[solver], 0, steps + 1)[:-1]
    return shift * base / (1 + (shift - 1) * base)
