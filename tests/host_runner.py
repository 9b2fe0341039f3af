"""Runs the checks of tests/host_scripts in a real ComfyUI's Python, many in one process, as it starts slowly."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from comfy_tree import Host

SCRIPTS = Path(__file__).parent / "host_scripts"
SECONDS = 1800


class Report:
    """What a script found: one entry per check, a value or the traceback of what it raised."""

    def __init__(self, checks: dict[str, dict]):
        self.checks = checks

    def __getitem__(self, check: str):
        """A check's value; AssertionError with its traceback when it raised."""
        found = self.checks[check]
        assert "raised" not in found, found["raised"]
        return found["value"]


def run_checks(host: Host, script: str, *arguments: str) -> Report:
    """The report of a script of tests/host_scripts; RuntimeError with its output when it ends badly."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"COMFYUI_PATH": str(host.root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [host.python, SCRIPTS / script, *arguments],
        cwd=SCRIPTS, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
    return Report(json.loads(done.stdout.splitlines()[-1]))
