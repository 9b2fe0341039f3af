"""Figures of a benchmark: shown as they come, and as one table at the end."""

import gc
import json
import statistics
import time
from collections.abc import Callable

import torch

GB = 1e9


class Report:
    """Rows of (figure, value, unit, note)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, str, str]] = []

    def add(self, figure: str, value: float, unit: str, note: str = "") -> None:
        self.rows.append((figure, round(value, 4), unit, note))
        print(json.dumps({"figure": figure, "value": round(value, 4), "unit": unit, "note": note}), flush=True)

    def table(self) -> str:
        lines = ["| figure | value | note |", "|---|---|---|"]
        return "\n".join(lines + [f"| {name} | {value:.4g} {unit} | {note} |" for name, value, unit, note in self.rows])


def free() -> None:
    """Give the GPU back what nobody holds any more."""
    gc.collect()
    torch.cuda.empty_cache()


def timed(step: Callable[[], object], repeats: int) -> tuple[float, int]:
    """Return the median seconds after a first call, and the peak bytes on the GPU above the memory used before."""
    step()
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), torch.cuda.max_memory_allocated() - held


def print_profile(step: Callable[[], object]) -> None:
    """The kernels of one step, longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    averages = profiler.key_averages()
    print(averages.table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=70))
    print(f"kernels and copies: {sum(each.count for each in averages if each.device_time_total)}")
