"""The multistep solvers UniPC and DPM++ for flow matching, with coefficients in float64."""

import math
from collections.abc import Callable, Generator

from torch import Tensor

from ..errors import InputError
from ..options import SolverName

Denoise = Callable[[Tensor, Tensor], Tensor]
Callback = Callable[[int, Tensor, Tensor, Tensor], None]
Steps = Generator[tuple[int, Tensor, Tensor], Tensor, Tensor]
"""A generator that yields (step, x, sigma), receives the model's x0, and at the end returns the denoised result."""


def unipc_steps(x: Tensor, sigmas: Tensor) -> Steps:
    """Return a generator of UniPC's steps (arXiv 2302.04867) from the noisy `x`. It yields (step, x, sigma) and
    receives the model's x0. It raises InputError unless `sigmas` [steps + 1] decrease and are between 0 and 1."""
    levels = _levels(sigmas)
    start, before, current, order = x, x, x, 1  # the first step has order 1 and does not read `before` and `current`
    for step in range(len(levels) - 1):
        denoised = yield step, x, sigmas[step]
        if step > 0:
            x = _correct(start, before, current, denoised, levels[: step + 1], order)
        start, before, current = x, current, denoised
        order = 1 if step in (0, len(levels) - 2) else 2
        x = _predict(start, before, current, levels[: step + 2], order)
    return x


def dpmpp_steps(x: Tensor, sigmas: Tensor) -> Steps:
    """Return a generator of the steps of DPM-Solver++ 2M (arXiv 2211.01095), midpoint variant. It yields, receives and
    raises the same as `unipc_steps`."""
    levels = _levels(sigmas)
    before = x  # the first step has order 1 and does not read it
    for step in range(len(levels) - 1):
        denoised = yield step, x, sigmas[step]
        order = 1 if step in (0, len(levels) - 2) else 2
        x = _predict(x, before, denoised, levels[: step + 2], order)
        before = denoised
    return x


SOLVERS = {"unipc": unipc_steps, "dpmpp": dpmpp_steps}


def solve(solver: SolverName, denoise: Denoise, x: Tensor, sigmas: Tensor, callback: Callback | None = None) -> Tensor:
    """Run all steps of a solver and return the denoised result. `denoise(x, sigma)` returns x0. `callback(step, x,
    denoised, sigma)` is called after each step."""
    steps, denoised = SOLVERS[solver](x, sigmas), None
    while True:
        try:
            step, x, sigma = next(steps) if denoised is None else steps.send(denoised)
        except StopIteration as end:
            return end.value
        denoised = denoise(x, sigma)
        if callback is not None:
            callback(step, x, denoised, sigma)


def _levels(sigmas: Tensor) -> list[float]:
    levels = sigmas.double().tolist()
    falling = all(high > low for high, low in zip(levels, levels[1:], strict=False))
    if levels and not (falling and levels[0] <= 1 and levels[-1] >= 0):
        raise InputError(f"sigmas must fall from at most 1 to at least 0, found {levels[:4]} ... {levels[-1]}")
    return levels


def _predict(x: Tensor, x0_before: Tensor, x0: Tensor, levels: list[float], order: int) -> Tensor:
    """Return x at levels[-1], one solver step from `x` and `x0` at levels[-2]. Order 2 also uses `x0_before`, predicted
    at levels[-3]."""
    if order == 2:
        x0 = x0 + 0.5 * (x0_before - x0) / _ratio(levels)
    return _move(x, x0, levels[-2], levels[-1])


def _correct(x: Tensor, x0_before: Tensor, x0: Tensor, x0_next: Tensor, levels: list[float], order: int) -> Tensor:
    """Return the sample at noise level levels[-1], corrected by UniPC after the model was called there.

    x: the sample at levels[-2].
    x0_before, x0, x0_next: the model's x0 at levels[-3], levels[-2] and levels[-1]; order 1 ignores x0_before.
    """
    if order == 1:
        return _move(x, x0 + 0.5 * (x0_next - x0), levels[-2], levels[-1])
    ratio = _ratio(levels)
    h = _log_snr(levels[-1]) - _log_snr(levels[-2])
    phi_1 = math.expm1(-h)
    phi_2 = phi_1 / -h - 1
    phi_3 = phi_2 / -h - 0.5
    first, second = phi_2 / phi_1, 2 * phi_3 / phi_1  # right-hand sides of UniPC's 2x2 system, over B(h)
    rho = (first - second) / (1 - ratio)
    combined = x0 + rho / ratio * (x0_before - x0) + (first - rho) * (x0_next - x0)
    return _move(x, combined, levels[-2], levels[-1])


def _move(x: Tensor, x0: Tensor, sigma: float, target: float) -> Tensor:
    """Return x moved from noise level `sigma` to `target` along the flow's ODE, with a constant x0."""
    if target == 0:
        return x0.clone()
    h = _log_snr(target) - _log_snr(sigma)
    return (target / sigma) * x - (1 - target) * math.expm1(-h) * x0


def _ratio(levels: list[float]) -> float:
    earlier, here, there = (_log_snr(sigma) for sigma in levels[-3:])
    return (earlier - here) / (there - here)


def _log_snr(sigma: float) -> float:
    if sigma in (0.0, 1.0):
        return math.inf if sigma == 0 else -math.inf
    return math.log1p(-sigma) - math.log(sigma)
