"""The processes that make one video together, one for each GPU: how they start, divide the work, speak and end.

`torchrun` starts them, or `--gpus N`, which starts torchrun's engine. The first process encodes the prompts and writes
the video; all of them load the expert and compute the steps.
"""

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
from ...pipeline.two_experts import ParallelGroups

T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=24)
"""For one another, for instance while the first process decodes and writes an hour of video. A process that died is
noticed at once, by torchrun."""
ENDED_WITH_THE_OTHERS = 1
"""Exit code of a process that has nothing to say of its own: torchrun's engine or another process does."""
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that torchrun ended because another one failed."""
PATIENCE = 30  # seconds for the process that failed first to say why


@dataclass(frozen=True)
class Processes:
    """This process's number and how many there are. One process alone has everything to do."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process shows progress and writes the video."""
        return self.rank == 0

    def takes(self, task: int) -> bool:
        """Whether this process does a task that one of them does for all."""
        return self.rank == task % self.size

    def share(self, made: T | None, task: int) -> T:
        """What the process that took the task has made, for all of them. Tensors have to be on the CPU."""
        if self.size == 1:
            assert made is not None
            return made
        values = [made]
        distributed.broadcast_object_list(values, src=task % self.size, device=torch.device("cpu"))
        value = values[0]
        assert value is not None
        return value

    def least(self, value: int) -> int:
        """The smallest of what the processes have, for instance of free memory, so that all of them decide the same."""
        if self.size == 1:
            return value
        values = torch.tensor(value, dtype=torch.int64)
        distributed.all_reduce(values, distributed.ReduceOp.MIN)
        return int(values)

    def collect(self, tensor: Tensor) -> list[Tensor] | None:
        """Every process's tensor, in the first process; the others get None. The tensors lie on the CPU and have the
        same shape."""
        collected = [torch.empty_like(tensor) for _ in range(self.size)] if self.first else None
        distributed.gather(tensor.contiguous(), collected)
        return collected

    def device(self, asked: str | None) -> str | None:
        """The device of this process: by default the GPU of its number on this machine. Raises InputError for one GPU
        that all would use."""
        if self.size == 1 or asked == "cpu":
            return asked
        if asked not in (None, "cuda"):
            raise InputError(f"`device` {asked}: {self.size} processes use a GPU each; leave it out, or give cpu")
        return f"cuda:{os.environ.get('LOCAL_RANK', self.rank)}" if torch.cuda.is_available() else None

    def divide(self, config: ModelConfig, guided: bool, shard: bool = False) -> ParallelGroups:
        """Who computes what of a forward: half of them the prompt and half the negative prompt where there is one, and
        within each half an equal share of the tokens. With `shard` all of them divide the weights. Raises InputError
        where the model's heads do not allow it, or where there is nobody to divide with."""
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
def joined() -> Iterator[Processes]:
    """This process among those that torchrun started; ALONE without torchrun.

    Where several fail, one of them says why; the others end in silence, as they do when another one has died."""
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
        if not processes.first:  # at once: the first one may wait for this one, and cannot say anything meanwhile
            os._exit(INTERRUPTED)
        atexit.register(_leave)
        raise
    except Exception as error:
        told = str(error).lower()
        lost = isinstance(error, RuntimeError) and any(word in told for word in ("gloo", "nccl", "connection", "peer"))
        speaks = False
        if not lost:
            with contextlib.suppress(RuntimeError):  # the store has gone with the others
                speaks = store.add("lingbot-world failed", 1) == 1  # who comes first reports the fault
        if not speaks:
            # torchrun ends this process when the one that failed first has ended; if it does not, it ends here.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                time.sleep(PATIENCE)
            os._exit(ENDED_WITH_THE_OTHERS)
        raise


def _leave() -> None:
    """Ends the process when it has said what there is to say. Threads of gloo may still run, and the interpreter's own
    way out now and then aborts for them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def _join() -> Any:
    """Joins the others; returns the store that all of them reach."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # files are closed and removed on the way
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group(backend, timeout=LONGEST_WAIT)
    return distributed.distributed_c10d._get_default_store()


def check_gpus(count: int, device: str | None) -> None:
    """Raise InputError where there are fewer GPUs than processes that use one each. Without a GPU, processes compute on
    the CPU unless `device` names one."""
    found = torch.cuda.device_count()
    if device != "cpu" and found < count and (found or device is not None):
        fewer = f"`gpus` {found}" if found else "`device` cpu"
        raise InputError(f"`gpus` {count}: torch sees {found} CUDA GPUs here; give {fewer}")


def start(count: int, arguments: list[str], device: str | None = None) -> int:
    """Run `python -m lingbot_world ARGUMENTS` in `count` processes and return the exit code. Raises InputError for too
    few GPUs, LingBotError where a process was killed."""
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    check_gpus(count, device)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
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
    logging.disable(logging.CRITICAL)  # of torchrun's engine; the processes have their own
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
    """The code of the process that said what is wrong. Raises LingBotError if none did, because it was killed."""
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
