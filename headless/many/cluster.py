"""The option `lingbot-world batch --ray`: run groups of jobs on Ray actors, one per GPU."""

import gc
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import DependencyError, InputError
from .batch import RunGroups, SeededJob, run_group
from .manifest import Outcome
from .model_cache import ModelCache

LOCAL = "local"
"""Ray's address for a new cluster on this machine."""
ANSWER_SECONDS = 5
"""The timeout in seconds for a cluster's response, in addition to Ray's 10 s for the connection."""
LEAVE_SECONDS = 60
"""The timeout in seconds for joining each actor's thread at the end of a batch."""
MAX_TRIES = 3
"""The maximum number of attempts at a job after its actors were lost."""


def ray_runner(address: str, workers: int | None, on_gpus: bool) -> RunGroups:
    """Connect to a Ray cluster at HOST:PORT or "local". Return a function that runs groups on `workers` actors, by
    default one per GPU, or per CPU without `on_gpus`. Raises DependencyError without Ray, InputError without a usable
    cluster."""
    try:
        import ray
    except ImportError as error:
        raise DependencyError('Ray is not installed; install with: pip install "lingbot-world[cluster]"') from error
    where: dict[str, Any] = {"address": address}
    if address == LOCAL:
        where["include_dashboard"] = False
        if workers is not None and not on_gpus:
            where["num_cpus"] = workers
    try:
        _check_connection(address)
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray has no exception class for a failed start
        found = str(error).splitlines()[0].rstrip(".")
        if address == LOCAL:
            raise InputError(f"`ray` {address}: Ray does not start here ({found})") from error
        raise InputError(
            f"`ray` {address}: Ray does not connect there ({found}); start a cluster with `ray start "
            "--head` and give the HOST:PORT that it prints"
        ) from error
    count = workers or int(ray.cluster_resources().get("GPU" if on_gpus else "CPU", 0))
    if count < 1:
        raise InputError(f"`ray` {address}: the cluster has no GPU; give `device` cpu to run on CPUs")
    needs: dict[str, Any] = {"num_gpus": 1} if on_gpus else {"num_cpus": 1}
    actor = ray.remote(**needs)(Worker)
    return partial(_run_groups, actor.remote, count)


def _check_connection(address: str) -> None:
    """Raise Ray's error within seconds if no cluster responds at HOST:PORT. ray.init would wait for minutes."""
    if "://" in address or ":" not in address:
        return
    with suppress(ImportError, AttributeError, TypeError):
        from ray import _raylet
        from ray._private.services import canonicalize_bootstrap_address

        inside: Any = _raylet  # its type stubs lack the client
        inside.InnerGcsClient.standalone(canonicalize_bootstrap_address(address), None, ANSWER_SECONDS * 1000)


class Worker:
    """A Ray actor that makes the videos of groups of jobs."""

    def __init__(self) -> None:
        gc.freeze()  # a run collects garbage after each stage; scanning the imported modules would take 0.1 s
        self._cache = ModelCache()

    def ready(self) -> bool:
        return True

    def run(self, group: list[SeededJob], folder: Path) -> Iterator[Outcome]:
        yield from run_group(group, folder, self._cache)


def _run_groups(
    new_worker: Callable[[], Any], count: int, groups: list[list[SeededJob]], folder: Path
) -> Iterator[Outcome]:
    outcomes: queue.Queue[Outcome | BaseException] = queue.Queue()
    waiting: queue.Queue[_Attempt | None] = queue.Queue()
    done = threading.Event()
    for group in groups:
        waiting.put(_Attempt(group))
    given = new_worker, waiting, outcomes, folder, done
    threads = [threading.Thread(target=_serve, args=given, daemon=True) for _ in range(min(count, len(groups)))]
    for thread in threads:
        thread.start()
    for _ in range(sum(map(len, groups))):
        outcome = outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
    done.set()  # a thread that still requests a worker from Ray would end this process with an error
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join(LEAVE_SECONDS)


@dataclass(frozen=True)
class _Attempt:
    group: list[SeededJob]
    number: int = 1


def _serve(
    new_worker: Callable[[], Any], waiting: queue.Queue, outcomes: queue.Queue, folder: Path, done: threading.Event
) -> None:
    """Run groups of jobs from the queue `waiting` on a Ray actor, until the queue yields None or `done` is set. Put
    each job's outcome into `outcomes`. If the actor is lost, queue the unfinished jobs again."""
    import ray

    worker = None
    while not done.is_set():
        try:
            if worker is None:
                worker = _await_actor(new_worker(), done)
        except ray.exceptions.RayError:
            continue
        attempt = waiting.get() if worker is not None else None
        if attempt is None:
            return
        left = {seeded.job.name: seeded for seeded in attempt.group}
        try:
            for reference in worker.run.options(num_returns="streaming").remote(attempt.group, folder):
                outcome = ray.get(reference)
                outcomes.put(outcome)
                del left[outcome.job.name]
        except ray.exceptions.RayTaskError as error:
            outcomes.put(error)
        except ray.exceptions.RayError as error:
            worker = None
            for seeded in left.values():  # each job alone, so that one that crashes workers does not affect the others
                if attempt.number < MAX_TRIES:
                    waiting.put(_Attempt([seeded], attempt.number + 1))
                else:
                    why = f"{MAX_TRIES} workers were lost while they made it ({type(error).__name__})"
                    outcomes.put(Outcome(seeded.job, seeded.seed, error=why))


def _await_actor(worker: Any, done: threading.Event) -> Any:
    """Return the actor once it has started, or None if `done` is set first."""
    import ray

    answer = worker.ready.remote()
    while not done.is_set():
        if ray.wait([answer], timeout=1)[0]:
            ray.get(answer)
            return worker
    return None
