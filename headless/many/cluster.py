"""`lingbot-world batch --ray`: a batch's groups made by Ray actors, one for each GPU of a cluster or of this machine.

The files have to be found under the same paths on all machines. An actor that is lost, with its machine or alone, costs
the videos it was making: they are made again by another one.
"""

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
from .batch import RunGroups, Seeded, run_group
from .kept import Kept
from .manifest import Outcome

LOCAL = "local"
"""The address that stands for a new cluster of this machine alone, for Ray too: without one it reads RAY_ADDRESS."""
ANSWER_SECONDS = 5
"""For a cluster's answer, after the 10 s that Ray takes to connect."""
LEAVE_SECONDS = 60
"""For the threads that hand out groups, at the end."""
MOST_TRIES = 3
"""A job that was being made when as many actors were lost is given up."""


def on_ray(address: str, workers: int | None, on_gpus: bool) -> RunGroups:
    """Connects to the cluster at `address`, or starts one here. `workers`: how many actors; left out, as many as there
    are GPUs. Raises DependencyError without Ray and InputError where no cluster answers or it has no room for one."""
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
        _ask(address)
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray has no class of its own for a start that fails
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


def _ask(address: str) -> None:
    """Raises what Ray does where no cluster answers at HOST:PORT: within 15 s, as it asks once; ray.init asks for
    minutes. Other addresses are left to ray.init, and all where Ray has not these names of its inside."""
    if "://" in address or ":" not in address:
        return
    with suppress(ImportError, AttributeError, TypeError):
        from ray import _raylet
        from ray._private.services import canonicalize_bootstrap_address

        inside: Any = _raylet  # whose types leave the client out
        inside.InnerGcsClient.standalone(canonicalize_bootstrap_address(address), None, ANSWER_SECONDS * 1000)


class Worker:
    """One actor: it makes the videos of a group, and tells of each as it ends. Open files and models stay for the next
    group where memory has room."""

    def __init__(self) -> None:
        gc.freeze()  # a run collects after each stage: walking what is imported, Ray too, takes 0.1 s each time
        self._kept = Kept()

    def ready(self) -> bool:
        """Answers when the actor has found its place in the cluster."""
        return True

    def run(self, group: list[Seeded], folder: Path) -> Iterator[Outcome]:
        """The outcomes of a group's jobs."""
        yield from run_group(group, folder, self._kept)


def _run_groups(
    new_worker: Callable[[], Any], count: int, groups: list[list[Seeded]], folder: Path
) -> Iterator[Outcome]:
    """Hands the groups to `count` workers, a thread for each of these; gives the outcomes as they come."""
    outcomes: queue.Queue[Outcome | BaseException] = queue.Queue()
    waiting: queue.Queue[_Try | None] = queue.Queue()
    done = threading.Event()
    for group in groups:
        waiting.put(_Try(group))
    given = new_worker, waiting, outcomes, folder, done
    threads = [threading.Thread(target=_serve, args=given, daemon=True) for _ in range(min(count, len(groups)))]
    for thread in threads:
        thread.start()
    for _ in range(sum(map(len, groups))):
        outcome = outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
    done.set()  # a thread that still asks Ray for a worker would end this process with an error
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join(LEAVE_SECONDS)


@dataclass(frozen=True)
class _Try:
    """A group that waits for a worker, and which attempt this will be."""

    group: list[Seeded]
    number: int = 1


def _serve(
    new_worker: Callable[[], Any], waiting: queue.Queue, outcomes: queue.Queue, folder: Path, done: threading.Event
) -> None:
    """Gives a worker one group after the other, until all is done, and takes a new worker where one was lost. It waits
    for that worker's place in the cluster before it takes a group, which another thread may have a worker for."""
    import ray

    worker = None
    while not done.is_set():
        try:
            if worker is None:
                worker = _placed(new_worker(), done)
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
            for seeded in left.values():  # each on its own: one that ends its workers takes the others not along
                if attempt.number < MOST_TRIES:
                    waiting.put(_Try([seeded], attempt.number + 1))
                else:
                    why = f"{MOST_TRIES} workers were lost while they made it ({type(error).__name__})"
                    outcomes.put(Outcome(seeded.job, seeded.seed, error=why))


def _placed(worker: Any, done: threading.Event) -> Any:
    """The worker, when it has its place in the cluster; None when all was done before. Raises what Ray does for a
    worker that is lost."""
    import ray

    answer = worker.ready.remote()
    while not done.is_set():
        if ray.wait([answer], timeout=1)[0]:
            ray.get(answer)
            return worker
    return None
