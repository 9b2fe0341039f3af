"""The number of torch's threads on a CPU.

Threads that share a core with other programs delay each other in every layer. So torch gets as many threads as there
are cores that other programs leave idle. The number is at least half of torch's default, because fewer threads would
get a smaller share of a busy machine.
"""

import os
import time
from functools import cache
from importlib import import_module
from pathlib import Path

import torch

USERS_CHOICES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The environment variables by which the user sets the number of threads; they take precedence."""
SAMPLE = 0.1
"""The number of seconds during which the machine's load is measured."""
STATISTICS = Path("/proc/stat")
"""The file in which Linux reports the busy and idle times of each core. On other systems psutil supplies the times, if
it is installed."""


def use_idle_cores(device: torch.device) -> str:
    """Set torch's number of threads to the number of idle cores, but at least to half of torch's default.

    The number stays unchanged if `device` is not a CPU, or if OMP_NUM_THREADS or MKL_NUM_THREADS is set. Return a note
    for the user if other programs are the reason for fewer threads, else an empty string.
    """
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
    """Return the number of cores that other programs leave idle, at least 1, measured for SAMPLE seconds. Without
    statistics all cores count as idle."""
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
    """Return the CPU seconds that other programs have used on `cores`. Only differences between two calls are
    meaningful."""
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
    """Return the busy ticks of a core from the `fields` of its row in /proc/stat, without idle time and waits for
    disks. The fields for virtual machines (guests) are left out, because Linux includes them in user time."""
    user, nice, system, _idle, _disk, *interrupts_and_stolen = map(int, fields[:8])
    return user + nice + system + sum(interrupts_and_stolen)
