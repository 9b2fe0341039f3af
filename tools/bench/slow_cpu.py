"""A CPU at a third of its clock, played: another process stops this one for 0.4 of every 0.6 ms. The GPU goes on."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

STOP = """
import os, signal, sys, time
def wait(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: pass
process = int(sys.argv[1])
end = []
signal.signal(signal.SIGTERM, lambda *_: end.append(1))
while not end:
    os.kill(process, signal.SIGSTOP)
    wait(0.0004)
    os.kill(process, signal.SIGCONT)
    wait(0.0002)
"""


@contextmanager
def slow_cpu() -> Iterator[float]:
    """Gives how many times as long Python takes inside."""
    usual = min(_python() for _ in range(5))
    stopper = subprocess.Popen([sys.executable, "-S", "-c", STOP, str(os.getpid())])
    try:
        time.sleep(0.2)
        yield sorted(_python() for _ in range(5))[2] / usual
    finally:
        stopper.terminate()  # it leaves this process running
        stopper.wait()


def _python() -> float:
    begin, total = time.perf_counter(), 0
    for number in range(400_000):
        total += number
    return time.perf_counter() - begin
