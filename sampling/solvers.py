"""Multistep solvers for flow matching: UniPC and DPM++ as loops over `denoise(x, sigma) -> x0`.

Both predict x0 and integrate over `lambda = log((1 - sigma) / sigma)`. Coefficients are float64 numbers computed on the
CPU. Tensors keep the shape, device and dtype of `x`.
"""

import math
from collections.abc import Callable, Generator

from torch import Tensor

from ..errors import InputError
from ..options import SolverName

Denoise = Callable[[Tensor, Tensor], Tensor]
Callback = Callable[[int, Tensor, Tensor, Tensor], None]
Steps = Generator[tuple[int, Tensor, Tensor], Tensor, Tensor]
"""A generator that yields (step, x, sigma), receives the model's x0 for each, and returns the denoised result."""


def unipc_steps(x: Tensor, sigmas: Tensor) -> Steps:
    """Return a generator of the steps of UniPC (Zhao et al. 2023, arXiv 2302.04867) from the noise `x`.

    The first and the last step have order 1, the other steps order 2 with B(h) = expm1(-h). The corrector runs on every
    step except the first. Each step calls the model once.

    `sigmas`, float [steps + 1], are noise levels that fall from at most 1 to at least 0. If the last level is 0, the
    result is the last x0. The generator raises InputError for other sigmas.
    """
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
    """Return a generator of the steps of DPM-Solver++ 2M (Lu et al. 2022, arXiv 2211.01095), midpoint variant. The
    first and the last step have order 1, the other steps order 2. Arguments and errors are those of `unipc_steps`."""
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
    """Run all steps of a solver and return the denoised result.

    `denoise(x, sigma)` returns the model's x0. `callback(step, x, denoised, sigma)` is called after each model call
    with the model's input `x`; an exception in it ends the loop. `x` and `sigmas` are as in `unipc_steps`. Raises
    InputError for invalid sigmas.
    """
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


def _predict(x: Tensor, before: Tensor, current: Tensor, levels: list[float], order: int) -> Tensor:
    """Return `x` after a step of this `order` from the next-to-last to the last of the noise `levels`. `current` is x0
    at the start of the step. `before` is x0 at the noise level before that."""
    if order == 2:
        current = current + 0.5 * (before - current) / _ratio(levels)
    return _move(x, current, levels[-2], levels[-1])


def _correct(
    start: Tensor, before: Tensor, current: Tensor, denoised: Tensor, levels: list[float], order: int
) -> Tensor:
    """Return x at the end of the step that `_predict` computed, corrected by the model's x0 there (UniPC's corrector).

    `start` is x at the start of the step. `before`, `current` and `denoised` are x0 at three noise levels: the level
    before the step, and those at the step's start and end.
    """
    if order == 1:
        return _move(start, current + 0.5 * (denoised - current), levels[-2], levels[-1])
    ratio = _ratio(levels)
    h = _log_snr(levels[-1]) - _log_snr(levels[-2])
    phi_1 = math.expm1(-h)
    phi_2 = phi_1 / -h - 1
    phi_3 = phi_2 / -h - 0.5
    first, second = phi_2 / phi_1, 2 * phi_3 / phi_1  # right-hand sides of UniPC's 2x2 system, over B(h)
    rho = (first - second) / (1 - ratio)
    data = current + rho / ratio * (before - current) + (first - rho) * (denoised - current)
    return _move(start, data, levels[-2], levels[-1])


def _move(x: Tensor, data: Tensor, sigma: float, target: float) -> Tensor:
    """Return x moved from the noise level `sigma` to the level `target` along the flow's ODE. The result is exact if
    the model's x0 is `data` at every level between the two."""
    if target == 0:
        return data.clone()
    h = _log_snr(target) - _log_snr(sigma)
    return (target / sigma) * x - (1 - target) * math.expm1(-h) * data


def _ratio(levels: list[float]) -> float:
    """Return (lambda[-3] - lambda[-2]) / (lambda[-1] - lambda[-2]) < 0 for the last three noise `levels`."""
    earlier, here, there = (_log_snr(sigma) for sigma in levels[-3:])
    return (earlier - here) / (there - here)


def _log_snr(sigma: float) -> float:
    if sigma in (0.0, 1.0):
        return math.inf if sigma == 0 else -math.inf
    return math.log1p(-sigma) - math.log(sigma)
