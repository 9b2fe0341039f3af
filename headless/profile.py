"""What each stage of a run took: seconds, peak host memory, peak GPU memory."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ..options import Progress

ShowProgress = Callable[[str, str], AbstractContextManager[Progress]]

STATUS = Path("/proc/self/status")
SAMPLING_SECONDS = 0.02


@dataclass(frozen=True)
class Stage:
    """Memory in bytes; None where it cannot be told (host: not Linux, GPU: a run on the CPU)."""

    name: str
    seconds: float
    host_peak: int | None
    gpu_peak: int | None


@contextmanager
def silent(name: str, unit: str) -> Iterator[Progress]:
    """The progress display of a run that shows nothing."""
    yield lambda done, total: None


class StageRecorder:
    """The stages of one run, one at a time: `begin` ends the stage before. `show(name, unit)` displays progress.

    Use as a context manager; at the end of it the last stage ends, also when an exception passes through.
    """

    def __init__(self, device: torch.device, show: ShowProgress = silent):
        self.stages: list[Stage] = []
        self.running = ""
        self._device, self._show = device, show
        self._end: Callable[[], None] | None = None

    def __enter__(self) -> "StageRecorder":
        return self

    def __exit__(self, *exception) -> None:
        self.end()

    def begin(self, name: str, unit: str = "", *, keep: bool = False) -> Progress:
        """Ends the running stage, starts the next and returns its progress callback. What the stage before left is
        freed, a fifth of a second, unless this one is to `keep` it."""
        self.end(keep)
        self.running = name
        display = self._show(name, unit)
        progress = display.__enter__()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        host, started = _HostPeak(), time.perf_counter()

        def end() -> None:
            self._end = None
            seconds = time.perf_counter() - started
            display.__exit__(None, None, None)
            self.stages.append(Stage(name, seconds, host.stop(), self._gpu_peak()))

        self._end = end
        return progress

    def end(self, keep: bool = False) -> None:
        """Ends the running stage, if there is one, and frees what it left unless that is to `keep`."""
        if self._end is not None:
            self._end()
            if not keep:
                release(self._device)

    def _gpu_peak(self) -> int | None:
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None


def release(device: torch.device) -> None:
    """Collects garbage and hands the GPU's cached memory back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def table(stages: list[Stage]) -> str:
    """The stages as lines of text, a sum of seconds and the peaks at the end."""
    total = Stage(
        "all",
        sum(stage.seconds for stage in stages),
        max((stage.host_peak for stage in stages if stage.host_peak is not None), default=None),
        max((stage.gpu_peak for stage in stages if stage.gpu_peak is not None), default=None),
    )
    rows = [("stage", "seconds", "peak host GB", "peak GPU GB"), *(map(_row, [*stages, total]))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])]) for name, *figures in rows
    )


def _row(stage: Stage) -> tuple[str, str, str, str]:
    return stage.name, f"{stage.seconds:.1f}", _gigabytes(stage.host_peak), _gigabytes(stage.gpu_peak)


def _gigabytes(amount: int | None) -> str:
    return "-" if amount is None else f"{amount / 1e9:.2f}"


def anonymous_memory() -> int | None:
    """Bytes of this process that are not backed by a file (mapped weights are); None where Linux's /proc is missing."""
    if not STATUS.exists():
        return None
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


class _HostPeak:
    """The largest anonymous memory from now until `stop`, sampled by a thread."""

    def __init__(self):
        self._peak, self._stopped = anonymous_memory(), threading.Event()
        if self._peak is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._stopped.wait(SAMPLING_SECONDS):
            self._peak = max(self._peak, anonymous_memory())

    def stop(self) -> int | None:
        self._stopped.set()
        return None if self._peak is None else max(self._peak, anonymous_memory())
