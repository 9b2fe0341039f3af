"""The number of torch's threads on a CPU. Threads that share a core with other programs wait for each other in every
layer, so there are as many threads as cores that other programs leave idle, and at least half of torch's own number:
fewer threads would also get a smaller share of a machine that is busy throughout."""

import os
import time
from functools import cache
from importlib import import_module
from pathlib import Path

import torch

USERS_CHOICES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads, and take precedence."""
SAMPLE = 0.1
"""The seconds during which the machine's load is measured."""
STATISTICS = Path("/proc/stat")
"""Linux's times of each core. Elsewhere psutil reads them, if it is installed."""


def use_idle_cores(device: torch.device) -> str:
    """Set torch's number of threads to the number of idle cores, or to half of its own number if that is more. Nothing
    happens for another device than a CPU, and if the environment sets the number. Return a note if other programs are
    the reason for fewer threads, else an empty string."""
    if device.type != "cpu" or any(os.environ.get(name) for name in USERS_CHOICES):
        return ""
    most = _default_threads()
    threads = min(most, max(idle_cores(), (most + 1) // 2))
    torch.set_num_threads(threads)
    if threads == most:
        return ""
    return (
        f"Other programs use the CPU, so torch's threads are {threads}, not {most}; OMP_NUM_THREADS sets their number."
    )


def idle_cores() -> int:
    """Return the number of cores that other programs leave idle, at least 1, measured during `SAMPLE` seconds. All
    cores count as idle where the system has no such figures."""
    cores = _cores()
    before, begin = _seconds_of_others(cores), time.perf_counter()
    time.sleep(SAMPLE)
    busy = (_seconds_of_others(cores) - before) / (time.perf_counter() - begin)
    return min(max(1, len(cores) - max(0, round(busy))), len(cores))


@cache
def _default_threads() -> int:
    return torch.get_num_threads()


def _cores() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _seconds_of_others(cores: set[int]) -> float:
    """Return the CPU seconds that other programs have used on `cores` since the system's start; of use are only
    differences."""
    own = sum(os.times()[:2])
    if STATISTICS.is_file():
        rows = dict(line.split(maxsplit=1) for line in STATISTICS.read_text().splitlines())
        used = [_busy_ticks(rows[f"cpu{core}"].split()) for core in cores if f"cpu{core}" in rows]
        return sum(used) / os.sysconf("SC_CLK_TCK") - own
    try:
        psutil = import_module("psutil")
    except ImportError:
        return -own
    return sum(each.user + each.system for each in psutil.cpu_times(percpu=True)) - own


def _busy_ticks(fields: list[str]) -> int:
    """Return the ticks of a core's row without those of idle and of waiting for disks, and without those of guests,
    which Linux counts as the user's too."""
    user, nice, system, _idle, _disk, *interrupts_and_stolen = map(int, fields[:8])
    return user + nice + system + sum(interrupts_and_stolen)
