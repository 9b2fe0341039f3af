"""Tests of the table's candidates on the card at hand: whether each is right, and how long it takes.

The modules that compute register here how a kind of work is tested (`Kind`) and the function of each candidate
(`attempt`)."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from . import kept
from .card import Card, card_of
from .table import BY_ORDER, Candidate, Work, candidates, missing

F = TypeVar("F", bound=Callable[..., Any])
REPEATS = 5
LEAST_SECONDS, MOST_RUNS = 0.01, 50
"""A GPU is timed over so many runs in a row that they take LEAST_SECONDS, but over MOST_RUNS at most. A single run of a
small product would spend half of its time on the launch and the wait."""


class Size(NamedTuple):
    """The size of a test: rows of the input, keys (of attention), columns of input, output and a head."""

    rows: int = 200
    keys: int = 456
    dim: int = 512
    out: int = 768
    head_dim: int = 128


class Kind(NamedTuple):
    """The definition of a test for a kind of work.

    It has a function that makes random arguments, one that computes the exact result, and the largest relative RMS
    error of a right candidate."""

    make: Callable[[torch.device, Size], tuple[Any, ...]]
    exact: Callable[..., Tensor]
    worst: float


class Trial(NamedTuple):
    """The test result of a candidate on a card.

    It has the relative RMS error, the seconds at the given size, and the reason for a rejection; None if not known."""

    name: str
    error: float | None = None
    seconds: float | None = None
    reason: str | None = None


KINDS: dict[Work, Kind] = {}
ATTEMPTS: dict[tuple[Work, str], Callable[..., Any]] = {}
ALONE: dict[tuple[Work, str], Callable[..., Callable[[], Any]]] = {}
"""Functions of a test's arguments that return a call of the kernel alone, for `rates`: its 8-bit operands come from
other layers or a cache. They are missing where the attempt is the kernel alone."""


def attempt(work: Work, name: str) -> Callable[[F], F]:
    """Return a decorator that registers the function of a candidate, which takes the arguments of its `Kind`."""

    def register(function: F) -> F:
        ATTEMPTS[work, name] = function
        return function

    return register


def chosen(work: Work, device: torch.device, size: Size) -> str | None:
    """Return the name of the candidate that a card uses for a kind of work at a size; None if no candidate is right.

    The result is the same for the whole process."""
    return _chosen(work, card_of(device), device, size)


def trials(work: Work, device: torch.device, size: Size) -> tuple[Trial, ...]:
    """Return the test result of each candidate of the card, from the cache if these were tested before."""
    return _trials(work, card_of(device), device, size)


@lru_cache
def _chosen(work: Work, card: Card, device: torch.device, size: Size) -> str | None:
    best = _best(_trials(work, card, device, size))
    if best is not None:
        logging.info("%s by %s on %s", work, best, card.known_as)
    return best


@lru_cache
def _trials(work: Work, card: Card, device: torch.device, size: Size) -> tuple[Trial, ...]:
    """Return the test results; the cache is not used for candidates if their package is missing in this process."""
    name, found = f"{work} {'x'.join(map(str, size))}", candidates(work, card)
    known = {trial.name: trial for trial in _read(card, name)}
    absent = {each.name: why for each in found if (why := missing(each.name, card)) is not None}
    present = [each for each in found if each.name not in absent]
    if any(each.name not in known for each in present):
        known = {trial.name: trial for trial in try_all(present, device, size, timed=not by_order(work, card))}
        kept.keep(card, name, list(known.values()))
    return (*(known[each.name] for each in present), *(Trial(name, reason=why) for name, why in absent.items()))


def works(work: Work, name: str, device: torch.device, size: Size) -> bool:
    """Return whether a card supports the named candidate, and it is right."""
    return any(each.name == name and each.reason is None for each in trials(work, device, size))


def taken(work: Work, card: Card) -> str | None:
    """Return the best candidate of the last test at any size; None if the card was not tested."""
    for name, found in reversed(list(kept.all_of(card).items())):
        if name.split()[0] == work:
            return _best([Trial(*each) for each in found])
    return None


def _best(tried: Iterable[Trial]) -> str | None:
    right = [trial for trial in tried if trial.reason is None]
    if not right:
        return None
    timed = all(each.seconds for each in right)
    return (min(right, key=lambda trial: trial.seconds or 0.0) if timed else right[0]).name


def forget() -> None:
    """Clear the choices of this process; the cache file stays."""
    _chosen.cache_clear()
    _trials.cache_clear()


def try_all(found: list[Candidate], device: torch.device, size: Size, *, timed: bool) -> list[Trial]:
    """Test candidates for one kind of work. If `timed` and at least two are right, also time these at `size`."""
    tried = [_try(candidate, device, size) for candidate in found]
    right = [trial for trial in tried if trial.reason is None]
    if not timed or len(right) < 2:
        return tried
    arguments = KINDS[found[0].work].make(device, size)
    return [
        trial if trial.reason else trial._replace(seconds=_seconds(candidate, arguments, device))
        for candidate, trial in zip(found, tried, strict=True)
    ]


def _try(candidate: Candidate, device: torch.device, size: Size) -> Trial:
    """Test a candidate with few rows and at most four heads' columns."""
    kind, run = KINDS[candidate.work], ATTEMPTS[candidate.work, candidate.name]
    small = Size(dim=min(size.dim, 4 * size.head_dim), head_dim=size.head_dim)
    try:
        arguments = kind.make(device, small)
        want = kind.exact(*arguments).float()
        error = ((run(*arguments).float() - want).norm() / want.norm()).item()
    except torch.OutOfMemoryError:
        raise
    except Exception as failure:
        return Trial(candidate.name, reason=" ".join(str(failure).split())[:300] or type(failure).__name__)
    right = error < kind.worst
    refused = None if right else f"its relative error here is {error:.2g}, more than {kind.worst:.2g}"
    return Trial(candidate.name, error, reason=refused)


def _seconds(candidate: Candidate, arguments: tuple[Any, ...], device: torch.device) -> float | None:
    return seconds_of(lambda: ATTEMPTS[candidate.work, candidate.name](*arguments), device)


def seconds_of(run: Callable[[], Any], device: torch.device, repeats: int = REPEATS) -> float | None:
    """Return the median of a function's seconds on a device after a first run; None if it raises."""
    try:
        run()
        runs = 1 if device.type == "cpu" else _runs(_seconds_of_runs(run, device, 1))
        return statistics.median(_seconds_of_runs(run, device, runs) for _ in range(repeats))
    except torch.OutOfMemoryError:
        raise
    except Exception as reason:
        logging.debug("%s", reason)
        return None


def _runs(seconds: float) -> int:
    return max(1, min(MOST_RUNS, math.ceil(LEAST_SECONDS / seconds)))


def _seconds_of_runs(run: Callable[[], Any], device: torch.device, runs: int) -> float:
    """Return the seconds of each of several runs in a row."""
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


def by_order(work: Work, card: Card) -> bool:
    """Return whether a card uses the first right candidate for a kind of work, without timing."""
    return BY_ORDER.get(work, lambda _card: False)(card)


def _read(card: Card, name: str) -> list[Trial]:
    found = kept.read(card, name)
    try:
        return [Trial(*each) for each in found or ()]
    except TypeError:  # a file in a foreign format
        return []
