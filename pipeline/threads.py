"""The choice of torch's number of CPU threads.

Threads that share a core with other programs delay each other in every layer. So torch gets as many threads as there
are cores that other programs leave idle. The CPU quota of the container and the size of a layer set an upper limit. The
number is at least half of that limit, because fewer threads would get a smaller share of a busy machine.
"""

import os
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

ELEMENTS = 2**14
"""The number of elements of a layer's output that keep one thread busy. With fewer elements per thread, the threads
would mostly wait for each other. A toy model at 64x64 pixels has 4,096 elements and gains nothing by a second thread;
one at 256x144 gains 20 %."""
QUOTAS = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
"""The files with a container's CPU quota, of Linux's cgroups in version 2 and version 1."""
USERS_CHOICES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The environment variables by which the user sets the number of threads; they take precedence."""
SAMPLE = 0.1
"""The number of seconds during which the machine's load is measured."""
STATISTICS = Path("/proc/stat")
"""The file in which Linux reports the busy and idle times of each core. On other systems psutil supplies the times, if
it is installed."""


def use_idle_cores(device: torch.device, elements: int | None = None, recorded: int = 0) -> str:
    """Set torch's number of threads to the number of idle cores, within limits. Return a note for the user if other
    programs are the reason for fewer threads, else an empty string.

    The upper limit is the smallest of torch's present number, the CPU quota and `elements` / ELEMENTS; the lower limit
    is half of it. The number stays unchanged if `device` is not a CPU, or if OMP_NUM_THREADS or MKL_NUM_THREADS is set.

    elements: the number of elements of a layer's output (None: no limit).
    recorded: the number of threads stored in the saved state that this run continues, or 0. This number is used instead
    of the idle cores, because another number would change the last bits. It is ignored if it is larger than torch's
    present number.
    """
    if device.type != "cpu" or any(os.environ.get(name) for name in USERS_CHOICES):
        return ""
    default = torch.get_num_threads()
    if 0 < recorded <= default:
        torch.set_num_threads(recorded)
        return ""
    most = min(default, _quota(), sys.maxsize if elements is None else max(1, elements // ELEMENTS))
    threads = min(most, max(idle_cores(), (most + 1) // 2))
    torch.set_num_threads(threads)
    if threads == most:
        return ""
    return (
        f"Other programs use the CPU, so torch's threads are {threads}, not {most}; OMP_NUM_THREADS sets their number."
    )


def idle_cores() -> int:
    """Return the number of cores that other programs leave idle, from 1 to the CPU quota. The load is measured for
    SAMPLE seconds. Without statistics of the cores, the system's load average is used. Without a load average, all
    cores count as idle."""
    cores = _cores()
    if not STATISTICS.is_file() and find_spec("psutil") is None:
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # the mean of a minute, on macOS
    else:
        before, begin = _seconds_of_others(cores), time.perf_counter()
        time.sleep(SAMPLE)
        busy = (_seconds_of_others(cores) - before) / (time.perf_counter() - begin)
    return min(max(1, len(cores) - max(0, round(busy))), len(cores), _quota())


def _quota() -> int:
    """Return the number of cores that the container's CPU quota allows, at least 1. Without a quota, return a huge
    number."""
    for file in filter(Path.is_file, QUOTAS):
        quota, *period = file.read_text().split()  # microseconds, or "max" or -1 for no quota
        if quota.isdecimal():
            each = period[0] if period else file.with_name("cpu.cfs_period_us").read_text()
            return max(1, -(-int(quota) // int(each)))
    return sys.maxsize


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
    psutil = import_module("psutil")
    return sum(each.user + each.system for each in psutil.cpu_times(percpu=True)) - own


def _busy_ticks(fields: list[str]) -> int:
    """Return the busy ticks of a core from the `fields` of its row in /proc/stat, without idle time and waits for
    disks. The fields for virtual machines (guests) are left out, because Linux includes them in user time."""
    user, nice, system, _idle, _disk, *interrupts_and_stolen = map(int, fields[:8])
    return user + nice + system + sum(interrupts_and_stolen)
