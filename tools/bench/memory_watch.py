"""Highest memory figures of a process, its machine and its GPU, from /proc and nvidia-smi. Linux only."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Memory:
    """Highest figures in bytes: `anon` of the process, `host` of the machine (20 Hz), `vram` of the first GPU and
    `vram1` and so on of the others (5 Hz)."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._stop, self._pid, self._smi = threading.Event(), None, None
        if shutil.which("nvidia-smi"):
            query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits", "-lms", "200"]
            self._smi = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._watch_gpu, daemon=True).start()
        threading.Thread(target=self._watch_host, daemon=True).start()

    def now(self, pid: int | None, seconds: float = 1.5) -> dict[str, int]:
        """The highest figures of the next moments, from here on of process `pid`."""
        self._pid = pid
        self.peaks = {}
        time.sleep(seconds)
        return dict(self.peaks)

    def _watch_gpu(self) -> None:
        for line in self._smi.stdout:
            gpu, mebibytes = map(int, line.split(","))
            self._note(f"vram{gpu or ''}", mebibytes << 20)

    def _watch_host(self) -> None:
        while not self._stop.wait(0.05):
            self._note("host", machine_bytes())
            if self._pid is not None:
                self._note("anon", process_bytes(self._pid))

    def _note(self, name: str, value: int) -> None:
        self.peaks[name] = max(value, self.peaks.get(name, 0))

    def stop(self) -> None:
        self._stop.set()
        if self._smi:
            self._smi.terminate()


class StageMemory:
    """Highest anonymous memory of this process in each stage of a run.

    `show` takes the place of a run's progress display, which is open for as long as a stage runs. A thread reads the
    memory 50 times a second meanwhile.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    @contextmanager
    def show(self, stage: str, _unit: str) -> Iterator[Callable[[int, int], None]]:
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(stage, ended), daemon=True)
        thread.start()
        try:
            yield lambda _done, _total: None
        finally:
            ended.set()
            thread.join()

    def _watch(self, stage: str, ended: threading.Event) -> None:
        last = False
        while not last:
            last = ended.wait(0.02)
            self.peaks[stage] = max(process_bytes(os.getpid()), self.peaks.get(stage, 0))


def process_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process, mapped files not counted; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(map(int, re.findall(r"(?:RssAnon|RssShmem):\s+(\d+)", status)))


def machine_bytes() -> int:
    """Used memory of the machine that is not page cache."""
    kib = dict(re.findall(r"(\w+):\s+(\d+)", Path("/proc/meminfo").read_text()))
    free = sum(int(kib.get(name, 0)) for name in ("MemFree", "Buffers", "Cached", "SReclaimable"))
    return 1024 * (int(kib["MemTotal"]) - free + int(kib["Shmem"]))
