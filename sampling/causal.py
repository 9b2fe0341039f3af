"""The denoising schedules of causal models: a few steps without guidance, or many steps with guidance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import InputError
from ..options import FAST_INDICES, GUIDE_SCALE, SCHEDULES, STEPS, V2_INDICES, Release, SolverName
from .schedule import flow_sigmas, flow_timesteps
from .solvers import solve

TABLE_STEPS = 1000
"""The number of steps of the UniPC schedule. A few-step schedule is a selection of these steps."""

Predict = Callable[[Tensor, int], Tensor]
"""A function predict(x, timestep) that calls the model and returns the velocity."""


@dataclass(frozen=True)
class FewStepSchedule:
    """A schedule of a few steps without guidance.

    timesteps: the model's integer timestep at each step.
    sigmas: each step's noise level, for x0 = x - sigma * velocity.
    renoise_sigmas: for each later step, the level to which x0 is noised.
    """

    timesteps: tuple[int, ...]
    sigmas: tuple[float, ...]
    renoise_sigmas: tuple[float, ...]
    guide_scale: ClassVar[float] = 1
    """The scale of classifier-free guidance, 1: no negative prompt is used."""

    def denoise(self, predict: Predict, x: Tensor, renoise: Callable[..., Tensor]) -> Tensor:
        """Return the clean latent, float32 [1, 16, chunk, h, w], from the noise `x`. `renoise(shape)` returns new
        standard normal noise."""
        denoised = x
        for step, timestep in enumerate(self.timesteps):
            if step > 0:
                sigma = self.renoise_sigmas[step - 1]
                noise = renoise(tuple(x.shape)).to(x, non_blocking=x.device.type == "cuda")
                x = (1 - sigma) * denoised + sigma * noise
            velocity = predict(x, timestep)
            denoised = (x.double() - self.sigmas[step] * velocity.double()).float()
        return denoised


@dataclass(frozen=True)
class GuidedSchedule:
    """A schedule of many steps with guidance. At a `guide_scale` of 1 no negative prompt is used."""

    steps: int = STEPS
    shift: float = 5.0
    guide_scale: float = GUIDE_SCALE
    solver: SolverName = "unipc"

    @property
    def timesteps(self) -> tuple[int, ...]:
        """The model's integer timestep at each step. Raises InputError for invalid settings."""
        return tuple(flow_timesteps(self.steps, self.shift, self.solver).tolist())

    @property
    def sigmas(self) -> tuple[float, ...]:
        """The noise level of each step, rounded to float32."""
        return tuple(flow_sigmas(self.steps, self.shift, self.solver).tolist()[:-1])

    def denoise(self, predict: Predict, x: Tensor, renoise: Callable[..., Tensor]) -> Tensor:  # noqa: ARG002
        """Return the clean latent, float32 [1, 16, chunk, h, w], from the noise `x`. `predict` returns the guided
        velocity; `renoise` is not used."""
        timesteps = iter(self.timesteps)

        def denoised(x: Tensor, sigma: Tensor) -> Tensor:
            return x - sigma * predict(x, next(timesteps))

        return solve(self.solver, denoised, x, flow_sigmas(self.steps, self.shift, self.solver).to(x.device))


def few_step_schedule(indices: Sequence[int], shift: float) -> FewStepSchedule:
    """Return the schedule of the steps at `indices` (rising, 0 to 999) of the 1,000-step schedule with this `shift`.
    Raises InputError for invalid indices."""
    indices = tuple(indices)
    rising = all(low < high for low, high in zip(indices, indices[1:], strict=False))
    if not indices or not rising or indices[0] < 0 or indices[-1] >= TABLE_STEPS:
        raise InputError(
            f"schedule indices are {list(indices)}, expected one or more rising numbers from 0 to {TABLE_STEPS - 1}, "
            f"such as {list(FAST_INDICES)} (Fast) or {list(V2_INDICES)} (2.0)"
        )
    table, sigmas = flow_timesteps(TABLE_STEPS, shift).tolist(), flow_sigmas(TABLE_STEPS, shift).tolist()
    timesteps = tuple(table[index] for index in indices)
    # as in the official code: x0 with the first sigma of a timestep, noise with the second if there is one
    firsts = [table.index(timestep) for timestep in timesteps]
    seconds = [first + (table[first + 1 : first + 2] == [table[first]]) for first in firsts]
    return FewStepSchedule(
        timesteps,
        tuple(sigmas[first] for first in firsts),
        tuple(sigmas[second] for second in seconds[1:]),
    )


def step_indices(schedule: str | tuple[int, ...] | None, release: Release) -> tuple[int, ...]:
    """Return the indices of the denoising steps for "v1", "v2", a text such as "0,250,500", or a tuple; None selects
    the release's. Raises InputError for invalid text."""
    if schedule is None:
        return release.indices
    if isinstance(schedule, tuple):
        return schedule
    if schedule in SCHEDULES:
        return SCHEDULES[schedule]
    try:
        return tuple(int(index) for index in schedule.split(","))
    except ValueError:
        raise InputError(f"`schedule` {schedule}: expected v1, v2 or indices such as 0,250,500,750") from None
