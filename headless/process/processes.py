"""Several processes, one for each GPU, that make one video together."""

import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from ...errors import InputError, LingBotError
from ...model.config import ModelConfig
from ...model.parallel import SequenceParallel
from ...pipeline.threads import idle_cores
from ...pipeline.two_experts import ParallelGroups

T = TypeVar("T")

TIMEOUT = timedelta(hours=24)
"""The timeout of communication between processes. It must exceed the time in which the first process decodes and writes
a video."""
ENDED_WITH_THE_OTHERS = 1
"""The exit code of a process that ends only because another process has failed."""
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""The exit code of a process that torchrun terminated after another process had failed."""
PATIENCE = 30  # seconds to wait for the error report of the process that failed first


@dataclass(frozen=True)
class Processes:
    """The processes that make a video together. `rank` is this process's index. `size` is the number of processes."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process shows progress and writes the video."""
        return self.rank == 0

    def takes(self, task: int) -> bool:
        """Return whether task number `task` belongs to this process. Tasks go to the ranks in turn."""
        return self.rank == task % self.size

    def share(self, made: T | None, task: int) -> T:
        """Send the result of task number `task` to all processes, and return it. All processes must call this method.
        `made`: the result, with tensors on the CPU, in the process with rank `task` % `size`; ignored in others."""
        if self.size == 1:
            assert made is not None
            return made
        values = [made]
        distributed.broadcast_object_list(values, src=task % self.size, device=torch.device("cpu"))
        value = values[0]
        assert value is not None
        return value

    def minimum(self, value: int) -> int:
        """Return the minimum of `value` over all processes."""
        if self.size == 1:
            return value
        values = torch.tensor(value, dtype=torch.int64)
        distributed.all_reduce(values, distributed.ReduceOp.MIN)
        return int(values)

    def collect(self, tensor: Tensor) -> list[Tensor] | None:
        """Gather one tensor per process. Return them by rank in the first process, and None in others. `tensor`: on the
        CPU, with the same shape everywhere."""
        collected = [torch.empty_like(tensor) for _ in range(self.size)] if self.first else None
        distributed.gather(tensor.contiguous(), collected)
        return collected

    def device(self, asked: str | None) -> str | None:
        """Return the device for this process. For a single process or "cpu", return `asked`. Otherwise return this
        process's GPU, or None without CUDA. Raises InputError if several processes ask for one GPU."""
        if self.size == 1 or asked == "cpu":
            return asked
        if asked not in (None, "cuda"):
            raise InputError(f"`device` {asked}: {self.size} processes use a GPU each; leave it out, or give cpu")
        return f"cuda:{os.environ.get('LOCAL_RANK', self.rank)}" if torch.cuda.is_available() else None

    def divide(self, config: ModelConfig, guided: bool, shard: bool = False) -> ParallelGroups:
        """Return the groups of processes that split each forward of a model, and with `shard` its weights. Raises
        InputError if the number of processes does not suit the model."""
        if self.size == 1:
            if shard:
                raise InputError("`shard` divides the weights among several GPUs: give `gpus` too")
            return ParallelGroups()
        halves = 2 if guided and self.size % 2 == 0 else 1
        together = self.size // halves
        groups = [distributed.new_group(range(half * together, (half + 1) * together)) for half in range(halves)]
        pairs = [distributed.new_group([rank, rank + together]) for rank in range(together if halves == 2 else 0)]
        sequence = SequenceParallel(groups[self.rank // together])
        sequence.check(config)
        weights = distributed.new_group(range(self.size)) if shard else None
        guidance = pairs[self.rank % together] if pairs else None
        return ParallelGroups(sequence if together > 1 else None, guidance, weights)


ALONE = Processes()


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the processes that torchrun started, and yield the Processes object of this process. Without torchrun, yield
    ALONE, a single process. After a failure, only the process that failed first raises its error."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    processes = Processes(int(os.environ["RANK"]), size)
    store = _join()
    try:
        yield processes
        distributed.destroy_process_group()
    except KeyboardInterrupt:
        if not processes.first:  # at once: the first process may wait for this one, and cannot report before
            os._exit(INTERRUPTED)
        atexit.register(_leave)
        raise
    except Exception as error:
        text = str(error).lower()
        lost = isinstance(error, RuntimeError) and any(word in text for word in ("gloo", "nccl", "connection", "peer"))
        is_first = False
        if not lost:
            with contextlib.suppress(RuntimeError):  # the store is gone if the others have ended
                is_first = store.add("lingbot-world failed", 1) == 1
        if not is_first:  # torchrun ends this process once the process that failed first has ended
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                time.sleep(PATIENCE)
            os._exit(ENDED_WITH_THE_OTHERS)
        raise


def _leave() -> None:
    """End the process without Python's cleanup, in which gloo's running threads can crash the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _join() -> Any:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # files are closed and removed before the exit
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group(backend, timeout=TIMEOUT)
    return distributed.distributed_c10d._get_default_store()


def check_gpus(count: int, device: str | None) -> None:
    """Raise InputError if this machine has too few GPUs for `count` processes, or too few CPU cores if they run on the
    CPU. `device`: the user's choice. With None, processes run on the CPU if there is no GPU."""
    found = torch.cuda.device_count()
    if device != "cpu" and found < count and (found or device is not None):
        fewer = f"`gpus` {found}" if found else "`device` cpu"
        raise InputError(f"`gpus` {count}: torch sees {found} CUDA GPUs here; give {fewer}")
    cores = max(8, os.cpu_count() or 1)
    if count > max(found, cores):
        raise InputError(f"`gpus` {count}: more processes than this machine's CPU has cores; give at most {cores}")


def start(count: int, arguments: list[str], device: str | None = None) -> int:
    """Run `python -m lingbot_world ARGUMENTS` in `count` processes. Return 0, or the exit code of a failure. Raises
    LingBotError if a process was killed."""
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    check_gpus(count, device)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, idle_cores() // count)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"is_host": True},
        run_id=f"lingbot-world-{os.getpid()}",
        max_restarts=0,
        monitor_interval=0.1,
    )
    logging.disable(logging.CRITICAL)  # only torchrun's engine is silenced here; the processes have their own logging
    try:
        elastic_launch(config, sys.executable)("-m", "lingbot_world", *arguments)
    except SignalException as error:
        return 128 + error.sigval
    except ChildFailedError as error:
        return _exit_code({rank: failure.exitcode for rank, failure in error.failures.items()}, count)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def _exit_code(failures: dict[int, int], count: int) -> int:
    """Return the exit code of the process that caused a failed run. `failures`: exit codes by rank. `count`: the number
    of processes, for the message. Raises LingBotError if a signal such as SIGKILL ended that process."""
    for code in failures.values():
        if code > 0 and code not in (ENDED_WITH_THE_OTHERS, TERMINATED):
            return code
    for rank, code in failures.items():
        if code < 0 and code != -signal.SIGTERM:
            raise LingBotError(
                f"process {rank + 1} of {count} was ended by {signal.Signals(-code).name}, and the others with it; if "
                "memory ran out, the system's log says so"
            )
    return ENDED_WITH_THE_OTHERS
