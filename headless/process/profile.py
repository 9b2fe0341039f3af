"""Measure the time and the peak GPU memory of each stage of a run."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch

from ...errors import CancelledError
from ...options import Progress, ShowProgress


@dataclass(frozen=True)
class Stage:
    """A finished stage of a run. `gpu_peak`: the highest allocated GPU memory in bytes, or None on a CPU."""

    name: str
    seconds: float
    gpu_peak: int | None


@contextmanager
def silent(_name: str, _unit: str) -> Iterator[Progress]:
    """Yield a progress callback that does nothing."""
    yield lambda _done, _total: None


def with_callbacks(
    show: ShowProgress, steps: int, on_progress: Progress | None, cancel: Callable[[], bool] | None
) -> ShowProgress:
    """Return a replacement of `show` that also reports denoising steps, or a causal model's frames, to `on_progress`.
    If `cancel()` is true, progress updates raise CancelledError. `steps`: both experts' denoising steps together."""

    @contextmanager
    def show_and_tell(name: str, unit: str) -> Iterator[Progress]:
        with show(name, unit) as progress:

            def update(done: int, total: int) -> None:
                progress(done, total)
                if on_progress is not None and unit == "step":
                    on_progress(done if name.startswith("high") else steps - total + done, steps)
                elif on_progress is not None and name == "chunks":
                    on_progress(done, total)
                if cancel is not None and cancel():
                    raise CancelledError(f"cancelled in stage {name!r}")

            yield update

    return show_and_tell


class StageRecorder(AbstractContextManager["StageRecorder"]):
    """A recorder of the time and memory of a run's stages.

    stages: the finished stages.
    running: the name of the current stage.
    """

    def __init__(self, device: torch.device, show: ShowProgress = silent) -> None:
        self.stages: list[Stage] = []
        self.running = ""
        self._device, self._show = device, show
        self._end: Callable[[], None] | None = None

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self, name: str, unit: str = "", *, keep: bool = False) -> Progress:
        """End the previous stage, begin the stage `name`, and return its progress callback. `unit`: the unit of
        progress, such as "step". `keep`: whether to leave torch's cached GPU memory, which is otherwise freed."""
        self.end(keep)
        self.running = name
        display = self._show(name, unit)
        progress = display.__enter__()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        started = time.perf_counter()

        def end() -> None:
            self._end = None
            seconds = time.perf_counter() - started
            display.__exit__(None, None, None)
            peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None
            self.stages.append(Stage(name, seconds, peak))

        self._end = end
        return progress

    def end(self, keep: bool = False) -> None:
        """End and record the current stage, if any. Without `keep`, also collect Python's garbage and free torch's
        cached GPU memory."""
        if self._end is not None:
            self._end()
            if not keep:
                release(self._device)


def release(device: torch.device) -> None:
    """Collect Python's garbage, and on a GPU free the unused memory of torch's caching allocator."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def table(stages: list[Stage]) -> str:
    """Return the stages as a table of text, with the totals in the last row."""
    peaks = [stage.gpu_peak for stage in stages if stage.gpu_peak is not None]
    total = Stage("all", sum(stage.seconds for stage in stages), max(peaks, default=None))
    rows = [("stage", "seconds", "peak GPU GB")]
    for stage in (*stages, total):
        peak = "-" if stage.gpu_peak is None else f"{stage.gpu_peak / 1e9:.2f}"
        rows.append((stage.name, f"{stage.seconds:.1f}", peak))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])]) for name, *figures in rows
    )
