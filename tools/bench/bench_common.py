"""Common parts of the benchmarks: options, timing, figures, and memory by /proc and nvidia-smi (Linux only)."""

import argparse
import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import torch
from lingbot_world.pipeline.geometry import Geometry, explicit_geometry

GB = 1e9


class Report:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, str, str]] = []

    def add(self, figure: str, value: float, unit: str, note: str = "") -> None:
        self.rows.append((figure, round(value, 4), unit, note))
        print(json.dumps({"figure": figure, "value": round(value, 4), "unit": unit, "note": note}), flush=True)

    def add_error(self, figure: str, made: torch.Tensor, wanted: torch.Tensor) -> None:
        self.add(figure, relative(made, wanted), "", "relative RMS")

    @staticmethod
    def profile(step: Callable[[], object]) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            step()
            torch.cuda.synchronize()
        averages = profiler.key_averages()
        print(averages.table(sort_by="cuda_time_total", row_limit=22, max_name_column_width=70))
        print(f"kernels and copies: {sum(each.count for each in averages if each.device_time_total)}")

    def table(self) -> str:
        lines = ["| figure | value | note |", "|---|---|---|"]
        return "\n".join(lines + [f"| {name} | {value:.4g} {unit} | {note} |" for name, value, unit, note in self.rows])


def relative(made: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the relative RMS error."""
    return float((made.float() - wanted.float()).norm() / wanted.float().norm())


def parser_of(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="scratch: models, videos, logs")
    return parser


def gpu_parser(description: str) -> argparse.ArgumentParser:
    parser = parser_of(description)
    parser.add_argument("--size", default="480*832")
    parser.add_argument("--cap", type=float, help="GB of GPU memory to play with")
    parser.add_argument("--profile", action="store_true", help="what a step or a chunk is made of")
    parser.add_argument("--arithmetic", nargs="*", choices=("fp8", "int8"), default=[], help="also in these")
    parser.add_argument("--attention", nargs="*", choices=("8bit",), default=[], help="also in these, each arithmetic")
    return parser


def ways_of(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return attention and arithmetic of each further way that the options name."""
    exact = [("exact", arithmetic) for arithmetic in options.arithmetic]
    return [*exact, *product(options.attention, ("bf16", *options.arithmetic))]


def geometry_of(size: str, frames: int = 81) -> Geometry:
    """Return the geometry of "height*width"."""
    height, width = map(int, size.split("*"))
    return explicit_geometry(width, height, frames)


def normal_draw(device: str = "cuda", seed: int = 0) -> Callable[[tuple[int, ...]], torch.Tensor]:
    """Return a function of a shape that draws normal random numbers."""
    generator = torch.Generator(device).manual_seed(seed)
    return lambda shape: torch.randn(shape, device=device, generator=generator)


def play_card(gigabytes: float) -> None:
    """Limit torch's GPU memory to this many GB, of which half a GB is for the CUDA context."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((gigabytes - 0.5) * GB / total)


def free() -> None:
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


class Memory:
    """Highest bytes: `anon` of a process, `host` of the machine (50 Hz), `vram`, `vram1` ... of the GPUs (5 Hz)."""

    def __init__(self, gpus: bool = True) -> None:
        self.peaks: dict[str, int] = {}
        self._stop, self._pid, self._smi = threading.Event(), None, None
        if gpus and shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits", "-lms", "200"]
            self._smi = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._watch_gpu, daemon=True).start()
        threading.Thread(target=self._watch_host, daemon=True).start()

    def now(self, pid: int | None, seconds: float = 1.5) -> dict[str, int]:
        """Return the highest figures of the next moments, from here on of process `pid`."""
        self._pid = pid
        self.peaks = {}
        time.sleep(seconds)
        return dict(self.peaks)

    def _watch_gpu(self) -> None:
        for line in self._smi.stdout:
            gpu, mebibytes = map(int, line.split(","))
            self._note(f"vram{gpu or ''}", mebibytes << 20)

    def _watch_host(self) -> None:
        while not self._stop.wait(0.02):
            kib = dict(re.findall(r"(\w+):\s+(\d+)", Path("/proc/meminfo").read_text()))
            cached = sum(int(kib.get(name, 0)) for name in ("MemFree", "Buffers", "Cached", "SReclaimable"))
            self._note("host", 1024 * (int(kib["MemTotal"]) - cached + int(kib["Shmem"])))
            if self._pid is not None:
                self._note("anon", anon_bytes(self._pid))

    def _note(self, name: str, value: int) -> None:
        self.peaks[name] = max(value, self.peaks.get(name, 0))

    def stop(self) -> None:
        self._stop.set()
        if self._smi:
            self._smi.terminate()


class StageMemory:
    """Highest anonymous memory of this process in each stage of a run. `show` stands in for a progress bar."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._memory = Memory(gpus=False)

    @contextmanager
    def show(self, stage: str, _unit: str) -> Iterator[Callable[[int, int], None]]:
        self._memory.now(os.getpid(), 0)
        yield lambda _done, _total: None
        highest = max(anon_bytes(os.getpid()), self._memory.peaks.get("anon", 0))
        self.peaks[stage] = max(highest, self.peaks.get(stage, 0))


def anon_bytes(pid: int) -> int:
    """Return the anonymous and shared memory of a process; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(map(int, re.findall(r"(?:RssAnon|RssShmem):\s+(\d+)", status)))
