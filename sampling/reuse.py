"""Skipping of model calls: the velocity of some steps is extrapolated from earlier steps.

In flow-matching sampling the velocity changes slowly and almost linearly with sigma. `StepReuse` extrapolates a line
through the model's last two predictions. Each new prediction shows the error of the line. The method was developed for
this project. The related EasyCache (Zhou et al. 2025, arXiv 2507.02860) repeats the last difference of output and
input, and estimates the error from the change of the input.
"""

from collections.abc import Callable

from torch import Tensor

from ..errors import InputError

FIRST = 3
"""The model predicts at least this many steps at the start of a run and after a change of expert. Two steps define the
line of the extrapolation, and the third measures the line's error."""
LAST = 2
"""The model predicts this many steps at the end of a run, because sigma and velocity change most in these steps."""
MOST = 4
"""The velocity of at most this many consecutive steps is extrapolated."""


class StepReuse:
    """A rule that decides at each step of a run whether to call the model or to extrapolate the velocity.

    threshold: a velocity is extrapolated only if its estimated error, as a fraction of the velocity's norm, is at most
        this number, 0 to 1. At 0 the model predicts every step.
    calls: the number of steps that the model has predicted.

    Each time the model predicts, the extrapolation to the same step is compared with the prediction. This measured
    error, multiplied by the number of steps since the last prediction, is the estimate for later steps. The real error
    may be larger where the velocity changes direction.

    Raises InputError for a threshold outside of 0 to 1.
    """

    def __init__(self, threshold: float = 0.0) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(
                f"`reuse_threshold` {threshold}: a share of the velocity from 0 to 1 is expected; with 0 "
                "the model predicts every step"
            )
        self.threshold, self.calls = threshold, 0
        self._expert: object = None
        self._restart()

    def velocity(self, sigma: float, expert: object, steps_left: int, predict: Callable[[], Tensor]) -> Tensor:
        """Return the velocity at `sigma`: `predict()`, which calls the model, or an extrapolation.

        `expert` is any value that differs between the two experts; a change of it restarts the extrapolation.
        `steps_left` counts the remaining steps of the run, including this one. If several videos are computed in one
        batch, the model is called for all of them or for none.
        """
        if expert != self._expert:
            self._expert = expert
            self._restart()
        # The line's first step in a row counts the error of two steps, and each further step one more.
        will_do = self._error_per_step * (self._in_a_row + 2) <= self.threshold
        if will_do and steps_left > LAST and self._predicted >= FIRST and self._in_a_row < MOST:
            self._in_a_row += 1
            return self._line(sigma)
        velocity = predict()
        self.calls += 1
        if self.threshold > 0:
            self._compare(sigma, velocity)
        return velocity

    def _restart(self) -> None:
        self._known: list[tuple[float, Tensor]] = []  # (sigma, velocity) of the last two predictions
        self._error_per_step = float("inf")
        self._predicted = self._in_a_row = 0

    def _line(self, sigma: float) -> Tensor:
        (sigma_before, before), (sigma_last, last) = self._known
        return last + (last - before) * ((sigma - sigma_last) / (sigma_last - sigma_before))

    def _compare(self, sigma: float, velocity: Tensor) -> None:
        if len(self._known) == 2:
            error = (self._line(sigma) - velocity).norm() / velocity.norm().clamp(min=1e-12)
            self._error_per_step = float(error) / (self._in_a_row + 2)
        self._known = [*self._known[-1:], (sigma, velocity)]
        self._predicted, self._in_a_row = self._predicted + 1, 0
