"""Schedules, solvers and the choice between the two experts: pure functions, no model and no user interface."""

from .experts import first_low_step, guide, guide_scales, is_high_noise
from .schedule import TRAIN_TIMESTEPS, flow_sigmas, flow_timesteps
from .solvers import sample_flow_dpmpp, sample_flow_unipc

SOLVERS = {"unipc": sample_flow_unipc, "dpmpp": sample_flow_dpmpp}

__all__ = [
    "SOLVERS",
    "TRAIN_TIMESTEPS",
    "first_low_step",
    "flow_sigmas",
    "flow_timesteps",
    "guide",
    "guide_scales",
    "is_high_noise",
    "sample_flow_dpmpp",
    "sample_flow_unipc",
]
