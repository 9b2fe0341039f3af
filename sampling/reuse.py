"""Skipping of model calls: the velocity of some steps is extrapolated from earlier steps."""

from collections.abc import Callable

from torch import Tensor

from ..errors import InputError

FIRST = 3
"""The number of first steps without extrapolation of the velocity. A change of expert starts the count again."""
LAST = 2
"""The number of a run's last steps without extrapolation of the velocity."""
MOST = 4
"""The maximum number of consecutive steps with an extrapolated velocity."""


# related: EasyCache (arXiv 2507.02860), which repeats the last difference of output and input
class StepReuse:
    """A rule that decides at each step whether to call the model or to extrapolate the velocity. Raises InputError for
    a threshold outside of 0 to 1.

    threshold: the maximum estimated relative error of an extrapolation; 0: no extrapolation.
    calls: the number of steps that the model has predicted.
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
        """Return the velocity at `sigma`, predicted or extrapolated. `steps_left` includes this step; a change of
        `expert` restarts the extrapolation."""
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
