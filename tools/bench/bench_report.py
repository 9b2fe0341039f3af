"""Figures of a benchmark: shown as they come, and as one table at the end."""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

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


def gpu_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that bench_gpu.py and bench_causal.py have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="scratch for weights and videos")
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--cap", type=float, help="GB of GPU memory to play with")
    parser.add_argument("--profile", action="store_true", help="what a step or a chunk is made of")
    parser.add_argument("--arithmetic", nargs="*", choices=("fp8", "int8"), default=[], help="also in these")
    parser.add_argument("--attention", nargs="*", choices=("8bit",), default=[], help="also in these, each arithmetic")
    return parser


def ways_of(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return attention and arithmetic of each further way that the options ask for."""
    exact = [("exact", arithmetic) for arithmetic in options.arithmetic]
    return [*exact, *product(options.attention, ("bf16", *options.arithmetic))]


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
