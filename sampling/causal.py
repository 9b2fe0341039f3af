"""The schedules of the causal models, for each chunk of a video: a few unguided steps (LingBot-World Fast and 2.0), or
many guided ones (causal-pretrain, the quality release)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import InputError
from ..options import FAST_INDICES, GUIDE_SCALE, SCHEDULES, STEPS, V2_INDICES, Release, SolverName
from .schedule import flow_sigmas, flow_timesteps
from .solvers import solve

TABLE_STEPS = 1000
"""The few steps are taken from UniPC's schedule of this many steps."""

Predict = Callable[[Tensor, int], Tensor]
"""(x, timestep) -> velocity."""


@dataclass(frozen=True)
class FewStepSchedule:
    """Each step's `timesteps` (integers) and `sigmas` (float64, for x0 = x - sigma * velocity). `renoise_sigmas`
    (float32), one fewer: before every step but the first, noise is added to x0 up to this level."""

    timesteps: tuple[int, ...]
    sigmas: tuple[float, ...]
    renoise_sigmas: tuple[float, ...]
    guide_scale: ClassVar[float] = 1
    """There is no negative prompt."""

    def denoise(self, predict: Predict, x: Tensor, renoise: Callable[..., Tensor]) -> Tensor:
        """The clean latent x0 (float32) that `predict` makes of the noise `x` (float32) in these steps.

        `renoise(shape)` gives fresh standard normal noise; it is called before every step but the first. In pinned
        memory a GPU reads it when its turn comes, and Python does not wait."""
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
    """A solver that begins anew with each chunk. `guide_scale`: of the negative prompt; at 1 there is none."""

    steps: int = STEPS
    shift: float = 5.0
    guide_scale: float = GUIDE_SCALE
    solver: SolverName = "unipc"

    @property
    def timesteps(self) -> tuple[int, ...]:
        """Each step's timestep. Raises InputError for steps, a shift and a solver that are not possible."""
        return tuple(flow_timesteps(self.steps, self.shift, self.solver).tolist())

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Each step's sigma, float32."""
        return tuple(flow_sigmas(self.steps, self.shift, self.solver).tolist()[:-1])

    def denoise(self, predict: Predict, x: Tensor, renoise: Callable[..., Tensor]) -> Tensor:  # noqa: ARG002
        """The clean latent (float32) that `predict`, which is guided, makes of the noise `x`; no noise is added."""
        timesteps = iter(self.timesteps)

        def denoised(x: Tensor, sigma: Tensor) -> Tensor:
            return x - sigma * predict(x, next(timesteps))

        return solve(self.solver, denoised, x, flow_sigmas(self.steps, self.shift, self.solver).to(x.device))


def few_step_schedule(indices: Sequence[int], shift: float) -> FewStepSchedule:
    """The steps at these indices (rising, 0 to 999) of the 1,000-step schedule with this shift.

    The official code finds a step's sigma by its truncated timestep, which several sigmas may share. For x0 it takes
    the first of them, for re-noising the second if there is one. This does the same. Raises InputError."""
    indices = tuple(indices)
    rising = all(low < high for low, high in zip(indices, indices[1:], strict=False))
    if not indices or not rising or indices[0] < 0 or indices[-1] >= TABLE_STEPS:
        raise InputError(
            f"schedule indices are {list(indices)}, expected one or more rising numbers from 0 to {TABLE_STEPS - 1}, "
            f"such as {list(FAST_INDICES)} (Fast) or {list(V2_INDICES)} (2.0)"
        )
    table, sigmas = flow_timesteps(TABLE_STEPS, shift).tolist(), flow_sigmas(TABLE_STEPS, shift).tolist()
    timesteps = tuple(table[index] for index in indices)
    firsts = [table.index(timestep) for timestep in timesteps]
    seconds = [first + (table[first + 1 : first + 2] == [table[first]]) for first in firsts]
    return FewStepSchedule(
        timesteps,
        tuple(sigmas[first] for first in firsts),
        tuple(sigmas[second] for second in seconds[1:]),
    )


def step_indices(schedule: str | tuple[int, ...] | None, release: Release) -> tuple[int, ...]:
    """The steps that a `schedule` names: v1, v2 or indices such as 0,250,500,750; None takes the release's own.
    Raises InputError."""
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


def chosen_shift(shift: float | None, release: Release) -> tuple[float, tuple[str, ...]]:
    """The shift that is asked for, None the release's own; with a note where it is another than the release's."""
    if shift is None or shift == release.shift:
        return release.shift, ()
    return shift, (f"The shift is {shift:g}; {release.name} was made for {release.shift:g}.",)
