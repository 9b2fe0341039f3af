"""The handling of signals that end a run: Ctrl-C, SIGTERM and SIGHUP. Needs no torch."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

END_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals that end a run. Windows lacks SIGHUP."""


@contextmanager
def raise_at_signals(own_process: bool) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at SIGINT, SIGTERM or SIGHUP within this context, and yield a list of the received
    signals. Nothing changes unless the command owns the process (`own_process`)."""
    received: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    ours = own_process and _in_main_thread()
    default = (signal.SIG_DFL, signal.default_int_handler)
    handled = [number for number in END_SIGNALS if ours and signal.getsignal(number) in default]
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)  # later Python's exit would print a traceback


def end_at_next_signal() -> None:
    """Let the next SIGINT, SIGTERM or SIGHUP end the process immediately. Ignored signals stay ignored."""
    for number in END_SIGNALS if _in_main_thread() else ():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


class FilesNote:
    """A note on the output files that the run has written. Each `str()` looks at the files again."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._before = {file: _mark(file) for file in files}

    def __str__(self) -> str:
        new = self.written()
        return f"finished files stay: {', '.join(new)}" if new else "nothing was written"

    def written(self) -> list[str]:
        return [str(file) for file, before in self._before.items() if _mark(file) not in (None, before)]


def _mark(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class DelayInterrupts:
    """A context that delays interrupts, such as Ctrl-C, until its end. `first`: whether the first interrupt is delayed
    too; by default it takes effect at once."""

    def __init__(self, first: bool = False) -> None:
        self._holds = first
        self._waiting: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> "DelayInterrupts":
        for number in END_SIGNALS if _in_main_thread() else ():
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._holds:
            self._waiting = number
            return
        self._holds = True
        self._before[number](number, frame)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raise the last delayed interrupt, unless another interrupt already ends the run."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._waiting is not None and (error is None or isinstance(error, Exception)):
            self._before[self._waiting](self._waiting, None)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
