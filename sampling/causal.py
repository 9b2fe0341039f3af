"""The denoising schedules that the causal models use for each chunk of a video. LingBot-World Fast and 2.0 use a few
steps without guidance; the slower causal-pretrain uses many steps with guidance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import InputError
from ..options import FAST_INDICES, GUIDE_SCALE, SCHEDULES, STEPS, V2_INDICES, Release, SolverName
from .schedule import flow_sigmas, flow_timesteps
from .solvers import solve

TABLE_STEPS = 1000
"""The few steps of LingBot-World Fast and 2.0 are selected from a UniPC schedule of this many steps."""

Predict = Callable[[Tensor, int], Tensor]
"""A function predict(x, timestep) that calls the model and returns the velocity."""


@dataclass(frozen=True)
class FewStepSchedule:
    """A schedule of a few steps without guidance.

    timesteps: the integer timestep that the model gets at each step.
    sigmas: the noise level of each step, with which x0 = x - sigma * velocity is computed (in float64).
    renoise_sigmas: for each step except the first, the noise level to which the previous step's x0 is noised again.
    """

    timesteps: tuple[int, ...]
    sigmas: tuple[float, ...]
    renoise_sigmas: tuple[float, ...]
    guide_scale: ClassVar[float] = 1
    """The scale of classifier-free guidance: always 1, so that no negative prompt is used."""

    def denoise(self, predict: Predict, x: Tensor, renoise: Callable[..., Tensor]) -> Tensor:
        """Return the clean latent, float32 [1, 16, chunk, h, w], from the noise `x` in the same shape.

        `renoise(shape)` returns new standard normal noise, and is called before every step except the first. Noise in
        pinned memory is copied to a GPU without blocking Python.
        """
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
    """A schedule of many steps with guidance. Each chunk is denoised from noise by a new run of the solver.

    steps: the number of steps.
    shift: the shift of the noise levels (see `flow_sigmas`).
    guide_scale: the scale of classifier-free guidance. At 1 no negative prompt is used.
    solver: the name of the solver.
    """

    steps: int = STEPS
    shift: float = 5.0
    guide_scale: float = GUIDE_SCALE
    solver: SolverName = "unipc"

    @property
    def timesteps(self) -> tuple[int, ...]:
        """The model's integer timestep of each step. Raises InputError for invalid steps, shift or solver."""
        return tuple(flow_timesteps(self.steps, self.shift, self.solver).tolist())

    @property
    def sigmas(self) -> tuple[float, ...]:
        """The noise level of each step, rounded to float32."""
        return tuple(flow_sigmas(self.steps, self.shift, self.solver).tolist()[:-1])

    def denoise(self, predict: Predict, x: Tensor, renoise: Callable[..., Tensor]) -> Tensor:  # noqa: ARG002
        """Return the clean latent, float32 [1, 16, chunk, h, w], from the noise `x` in the same shape.
        `predict(x, timestep)` returns the guided velocity. `renoise` is not used: no noise is added between steps."""
        timesteps = iter(self.timesteps)

        def denoised(x: Tensor, sigma: Tensor) -> Tensor:
            return x - sigma * predict(x, next(timesteps))

        return solve(self.solver, denoised, x, flow_sigmas(self.steps, self.shift, self.solver).to(x.device))


def few_step_schedule(indices: Sequence[int], shift: float) -> FewStepSchedule:
    """Return the schedule of the steps at `indices` (rising, 0 to 999) of the 1,000-step schedule with this `shift`.

    Timesteps are truncated to integers, so several sigmas may have the same timestep. As in the official code, x0 is
    computed with the first sigma of a timestep. Noise is added with the second, or with the first if there is only one.
    Raises InputError for invalid indices.
    """
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
    """Return the indices of the denoising steps for the option `schedule`. It may be None (the indices of `release`), a
    name ("v1" or "v2"), a tuple of indices, or text such as "0,250,500,750". Raises InputError for other text."""
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
    """Return (shift, notes): the shift of the noise levels and notes for the user. The returned shift is `shift`, or
    the release's if `shift` is None. There is one note if `shift` differs from the release's, else none."""
    if shift is None or shift == release.shift:
        return release.shift, ()
    return shift, (f"The shift is {shift:g}; {release.name} was made for {release.shift:g}.",)
