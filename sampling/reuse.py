"""Steps whose velocity follows from the steps before, without a forward of the model.

Along a run of flow matching the velocity changes slowly and almost evenly with sigma. `StepReuse` goes on in a straight
line through the model's last two predictions. Each time the model predicts, the line is compared with it: the error
tells in how many of the next steps the line will do. The method is our own. EasyCache (Zhou et al. 2025, arXiv
2507.02860) repeats the last difference of output and input, and estimates its error from how far the input has moved.
"""

from collections.abc import Callable

from torch import Tensor

from ..errors import InputError

FIRST = 3
"""The model predicts an expert's first steps: two make the line, the third tells how good it is."""
LAST = 2
"""The model predicts a run's last steps, in which sigma and velocity change most."""
MOST = 4
"""Steps in a row that the line may make."""


class StepReuse:
    """The choice between the model and the line, for one run of one video.

    threshold: the line's error, as a share of the velocity's norm, up to which it is taken; 0 to 1. The error is an
    estimate from the last comparison, and may be exceeded where the velocity turns. At 0 the model predicts every step.
    `calls` counts the steps that the model has predicted. Raises InputError for a threshold outside of 0 to 1.
    """

    def __init__(self, threshold: float = 0.0) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(
                f"`reuse_threshold` {threshold}: a share of the velocity from 0 to 1 is expected; with 0 "
                "the model predicts every step"
            )
        self.threshold, self.calls = threshold, 0
        self._expert: object = None
        self._forget()

    def velocity(self, sigma: float, expert: object, steps_left: int, ask: Callable[[], Tensor]) -> Tensor:
        """The velocity at `sigma`: from `ask()`, which calls the model, or from the line.

        expert: anything that differs between the two experts; where it changes, the line begins anew. steps_left: the
        run's steps from this one on. A batch of several videos has one line in common."""
        if expert != self._expert:
            self._expert = expert
            self._forget()
        # The error counts as two steps' worth in the line's first step in a row, and as one more in each after it.
        will_do = self._error_per_step * (self._in_a_row + 2) <= self.threshold
        if will_do and steps_left > LAST and self._predicted >= FIRST and self._in_a_row < MOST:
            self._in_a_row += 1
            return self._line(sigma)
        velocity = ask()
        self.calls += 1
        if self.threshold > 0:
            self._compare(sigma, velocity)
        return velocity

    def _forget(self) -> None:
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
