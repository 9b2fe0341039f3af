"""Schedules, solvers and the choice between the two experts: pure functions, no model and no user interface."""

from .experts import BOUNDARY, first_low_step, guide, guide_scales, is_high_noise
from .schedule import TRAIN_TIMESTEPS, flow_sigmas, flow_timesteps
from .solvers import sample_flow_dpmpp, sample_flow_unipc

unipc, dpmpp_2m = sample_flow_unipc, sample_flow_dpmpp
SOLVERS = {"unipc": unipc, "dpmpp": dpmpp_2m}

__all__ = [
    "BOUNDARY",
    "SOLVERS",
    "TRAIN_TIMESTEPS",
    "dpmpp_2m",
    "first_low_step",
    "flow_sigmas",
    "flow_timesteps",
    "guide",
    "guide_scales",
    "is_high_noise",
    "sample_flow_dpmpp",
    "sample_flow_unipc",
    "unipc",
]
