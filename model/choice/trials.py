"""Tests of the accuracy and speed of kernels on the user's GPU, registered by the modules with kernels."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import user_cache
from .card import Card, card_of
from .table import UNTIMED, Candidate, Work, candidates, missing

F = TypeVar("F", bound=Callable[..., Any])
REPEATS = 5
MIN_SECONDS, MAX_RUNS = 0.01, 50
"""The minimum seconds of one timing on a GPU, reached by repeated runs, and the maximum number of these runs."""


class Size(NamedTuple):
    """The size of a kernel test's inputs.

    rows: the number of tokens or queries.
    keys: the number of keys in attention.
    dim: the number of input columns.
    out: the number of output columns.
    """

    rows: int = 200
    keys: int = 456
    dim: int = 512
    out: int = 768
    head_dim: int = 128


class KernelTest(NamedTuple):
    """The accuracy test for the kernels of one operation.

    make: returns random arguments.
    exact: returns the exact result for these arguments.
    max_error: the relative RMS error must be below this limit.
    """

    make: Callable[[torch.device, Size], tuple[Any, ...]]
    exact: Callable[..., Tensor]
    max_error: float


class Trial(NamedTuple):
    """The result of one kernel's test on a GPU.

    error: the relative RMS error, or None if the kernel did not run.
    seconds: the time of one run, or None if not timed.
    reason: why the kernel was rejected, or None if it passed.
    """

    name: str
    error: float | None = None
    seconds: float | None = None
    reason: str | None = None


KERNEL_TESTS: dict[Work, KernelTest] = {}
KERNEL_FUNCTIONS: dict[tuple[Work, str], Callable[..., Any]] = {}
PREQUANTIZED: dict[tuple[Work, str], Callable[..., Callable[[], Any]]] = {}
"""Functions by (operation, kernel name), for kernels with 8-bit inputs. Each converts a test's arguments to 8 bits, and
returns a callable that runs only the kernel, for timing."""


def register_kernel(work: Work, name: str) -> Callable[[F], F]:
    """Return a decorator that registers a function as the kernel `name` of an operation. The function takes the
    arguments that `KernelTest.make` returns."""

    def register(function: F) -> F:
        KERNEL_FUNCTIONS[work, name] = function
        return function

    return register


@lru_cache
def chosen(work: Work, device: torch.device, size: Size) -> str | None:
    """Return the name of the kernel to use, or None if no kernel passes the accuracy test. The first call tests the
    kernels or reads stored results."""
    best = _best(trials(work, device, size))
    if best is not None:
        logging.info("%s by %s on %s", work, best, card_of(device).known_as)
    return best


@lru_cache
def trials(work: Work, device: torch.device, size: Size) -> tuple[Trial, ...]:
    """Return the test results of all kernels of an operation at a size. Tests run only if a stored result is missing. A
    kernel without its package is not tested."""
    card = card_of(device)
    name, found = f"{work} {'x'.join(map(str, size))}", candidates(work, card)
    known = {trial.name: trial for trial in _read(user_cache.read(card, name))}
    absent = {each.name: why for each in found if (why := missing(each.name, card)) is not None}
    present = [each for each in found if each.name not in absent]
    if any(each.name not in known for each in present):
        known = {trial.name: trial for trial in try_all(present, device, size, timed=not skips_timing(work, card))}
        user_cache.store(card, name, list(known.values()))
    return (*(known[each.name] for each in present), *(Trial(name, reason=why) for name, why in absent.items()))


def works(work: Work, name: str, device: torch.device, size: Size) -> bool:
    """Return whether the kernel `name` is a candidate and passes its test at this size. A stored result is reused."""
    return any(each.name == name and each.reason is None for each in trials(work, device, size))


def stored_choice(work: Work, card: Card) -> str | None:
    """Return the kernel for the operation `work` on the GPU `card`, chosen from the newest stored test. Return None
    without a stored test, or if no kernel passed. No kernel is run."""
    for name, found in reversed(list(user_cache.read_all(card).items())):
        if name.startswith(f"{work} "):
            return _best(_read(found))
    return None


def _best(tried: Iterable[Trial]) -> str | None:
    right = [trial for trial in tried if trial.reason is None]
    if not right:
        return None
    timed = all(each.seconds for each in right)
    return (min(right, key=lambda trial: trial.seconds or 0.0) if timed else right[0]).name


def forget() -> None:
    """Clear this process's kernel choices, so that the next use of an operation chooses again. Stored tests stay."""
    chosen.cache_clear()
    trials.cache_clear()


def try_all(found: list[Candidate], device: torch.device, size: Size, *, timed: bool) -> list[Trial]:
    """Test the kernels of one operation. If `timed` and at least two are accurate, also time the accurate ones at
    `size`."""
    tried = [_try(candidate, device, size) for candidate in found]
    right = [trial for trial in tried if trial.reason is None]
    if not timed or len(right) < 2:
        return tried
    arguments = KERNEL_TESTS[found[0].work].make(device, size)
    runs = (partial(KERNEL_FUNCTIONS[each.work, each.name], *arguments) for each in found)
    return [
        trial if trial.reason else trial._replace(seconds=seconds_of(run, device))
        for run, trial in zip(runs, tried, strict=True)
    ]


def _try(candidate: Candidate, device: torch.device, size: Size) -> Trial:
    test, run = KERNEL_TESTS[candidate.work], KERNEL_FUNCTIONS[candidate.work, candidate.name]
    small = Size(dim=min(size.dim, 4 * size.head_dim), head_dim=size.head_dim)
    try:
        arguments = test.make(device, small)
        want = test.exact(*arguments).float()
        error = ((run(*arguments).float() - want).norm() / want.norm()).item()
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        return Trial(candidate.name, reason=" ".join(str(failure).split())[:300] or type(failure).__name__)
    right = error < test.max_error
    refused = None if right else f"its relative error here is {error:.2g}, more than {test.max_error:.2g}"
    return Trial(candidate.name, error, reason=refused)


def seconds_of(run: Callable[[], Any], device: torch.device, repeats: int = REPEATS) -> float | None:
    """Return the seconds of one call of `run`, the median of `repeats` timings, or None if `run` fails. Raise
    torch.OutOfMemoryError if memory runs out."""
    try:
        run()
        runs = 1
        if device.type != "cpu":
            runs = max(1, min(MAX_RUNS, math.ceil(MIN_SECONDS / _seconds_of_runs(run, device, 1))))
        return statistics.median(_seconds_of_runs(run, device, runs) for _ in range(repeats))
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        logging.debug("%s", reason)
        return None


def _seconds_of_runs(run: Callable[[], Any], device: torch.device, runs: int) -> float:
    wait(device)
    start = time.perf_counter()
    for _ in range(runs):
        run()
    wait(device)
    return (time.perf_counter() - start) / runs


def wait(device: torch.device) -> None:
    """Wait until a device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def skips_timing(work: Work, card: Card) -> bool:
    """Return whether the GPU `card` uses an operation's first accurate kernel in `table.TABLE` without timing."""
    return UNTIMED.get(work, lambda _card: False)(card)


def _read(stored: Any) -> list[Trial]:
    """Return the stored trials, or [] if `stored` is None or has another format."""
    try:
        found = [Trial(*each) for each in stored or () if isinstance(each, list)]
    except TypeError:
        return []
    return found if all(isinstance(each.seconds, float | None) for each in found) else []
