"""The schedule of causal-pretrain, the quality release of the causal models: many guided steps for each chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..options import GUIDE_SCALE, STEPS, SolverName
from .few_steps import Predict
from .schedule import flow_sigmas, flow_timesteps
from .solvers import solve


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
