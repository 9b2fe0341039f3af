"""The choice of torch's number of CPU threads from the number of idle cores."""

import os
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

ELEMENTS_PER_THREAD = 2**14
"""The minimum number of a layer's output elements per thread."""
QUOTAS = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
"""The Linux files with a container's CPU quota, for cgroup v2 and cgroup v1."""
USERS_CHOICES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""The environment variables by which the user sets the number of threads."""
SAMPLE = 0.1
"""The seconds for which the machine's load is measured."""
STATISTICS = Path("/proc/stat")
"""The file with the busy and idle times of each core on Linux."""


def use_idle_cores(device: torch.device, elements: int | None = None, recorded: int = 0) -> str:
    """Set torch's number of CPU threads to the number of idle cores, but from half to all of torch's present number,
    which the CPU quota may limit further. Return a note to the user if busy cores reduced the number, else "".

    device: where the model runs; nothing changes unless it is a CPU.
    elements: the number of a layer's output elements; few elements limit the threads further; None: no limit.
    recorded: a saved state's number of threads, set instead unless torch has fewer; 0: none recorded.
    """
    if device.type != "cpu" or any(os.environ.get(name) for name in USERS_CHOICES):
        return ""
    default = torch.get_num_threads()
    if 0 < recorded <= default:
        torch.set_num_threads(recorded)
        return ""
    most = min(default, _quota(), sys.maxsize if elements is None else max(1, elements // ELEMENTS_PER_THREAD))
    threads = min(most, max(idle_cores(), (most + 1) // 2))
    torch.set_num_threads(threads)
    if threads == most:
        return ""
    return (
        f"Other programs use the CPU, so torch's threads are {threads}, not {most}; OMP_NUM_THREADS sets their number."
    )


def idle_cores() -> int:
    """Return the number of cores that other programs leave idle: at least 1, at most the CPU quota."""
    cores = _cores()
    if not STATISTICS.is_file() and find_spec("psutil") is None:
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # the mean of a minute, on macOS
    else:
        before, begin = _seconds_of_others(cores), time.perf_counter()
        time.sleep(SAMPLE)
        busy = (_seconds_of_others(cores) - before) / (time.perf_counter() - begin)
    return min(max(1, len(cores) - max(0, round(busy))), len(cores), _quota())


def _quota() -> int:
    """Return the cores that the container's CPU quota allows, at least 1; sys.maxsize without a quota."""
    for file in filter(Path.is_file, QUOTAS):
        quota, *period = file.read_text().split()  # microseconds, or "max" or -1 for no quota
        if quota.isdecimal():
            each = period[0] if period else file.with_name("cpu.cfs_period_us").read_text()
            return max(1, -(-int(quota) // int(each)))
    return sys.maxsize


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _seconds_of_others(cores: set[int]) -> float:
    """Return the CPU seconds of other programs on `cores`. Only differences between two calls are meaningful."""
    own = sum(os.times()[:2])
    if STATISTICS.is_file():
        rows = dict(line.split(maxsplit=1) for line in STATISTICS.read_text().splitlines())
        used = [_busy_ticks(rows[f"cpu{core}"].split()) for core in cores if f"cpu{core}" in rows]
        return sum(used) / os.sysconf("SC_CLK_TCK") - own
    psutil = import_module("psutil")
    return sum(each.user + each.system for each in psutil.cpu_times(percpu=True)) - own


def _busy_ticks(fields: list[str]) -> int:
    """Return a core's busy clock ticks from the fields of its line in /proc/stat. The fields for guests are skipped,
    because user time includes them."""
    user, nice, system, _idle, _disk, *interrupts_and_stolen = map(int, fields[:8])
    return user + nice + system + sum(interrupts_and_stolen)
