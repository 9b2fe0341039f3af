"""Schedules, solvers, noise, and the choice between the two experts."""

from .causal import FewStepSchedule, GuidedSchedule, few_step_schedule, step_indices
from .experts import first_low_step, guide, guide_scales, is_high_noise
from .reuse import StepReuse
from .schedule import flow_sigmas, flow_timesteps
from .solvers import SOLVERS, solve

__all__ = [
    "SOLVERS",
    "FewStepSchedule",
    "GuidedSchedule",
    "StepReuse",
    "few_step_schedule",
    "first_low_step",
    "flow_sigmas",
    "flow_timesteps",
    "guide",
    "guide_scales",
    "is_high_noise",
    "solve",
    "step_indices",
]
