"""Runs the checks of tests/host_scripts in a real ComfyUI's Python, many in one process, as it starts slowly."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from threading import Timer

from comfy_tree import Host

SCRIPTS = Path(__file__).parent / "host_scripts"
SECONDS = 600  # a script that takes longer hangs


class Report:
    """What a script found: one entry per check, a value or the traceback of what it raised."""

    def __init__(self, checks: dict[str, dict]):
        self.checks = checks

    def __getitem__(self, check: str):
        """A check's value; AssertionError with its traceback when it raised."""
        found = self.checks[check]
        assert "raised" not in found, found["raised"]
        return found["value"]


class Interpreter:
    """A process that runs scripts without importing ComfyUI anew for each."""

    def __init__(self, host: Host):
        self._process = subprocess.Popen(
            [host.python, SCRIPTS / "interpreter.py"],
            cwd=SCRIPTS,
            env=environment(host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        atexit.register(self._process.kill)

    def run(self, script: str, *arguments: str) -> tuple[int, str, str]:
        """A script's exit code, output and errors."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("output", "errors")]
            self._process.stdin.write(json.dumps([script, *map(str, files), *arguments]) + "\n")
            self._process.stdin.flush()
            timer = Timer(SECONDS, self._process.kill)
            timer.start()
            code = self._process.stdout.readline()
            timer.cancel()
            return int(code or -1), *(file.read_text() if file.exists() else "" for file in files)


interpreter = cache(Interpreter)


def environment(host: Host) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"COMFYUI_PATH": str(host.root), "OMP_NUM_THREADS": "1"}


def run_checks(host: Host, script: str, *arguments: str, shared: bool = True) -> Report:
    """The report of a script of tests/host_scripts; RuntimeError with its output when it ends badly. `shared`: it needs
    no ComfyUI of its own, with other options."""
    if shared and hasattr(os, "fork"):
        code, output, errors = interpreter(host).run(script, *arguments)
    else:
        done = subprocess.run(
            [host.python, SCRIPTS / script, *arguments],
            cwd=SCRIPTS,
            env=environment(host),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        code, output, errors = done.returncode, done.stdout, done.stderr
    if code:
        raise RuntimeError(f"{script} ended with {code}:\n{output[-3000:]}\n{errors[-5000:]}")
    return Report(json.loads(output.splitlines()[-1]))
