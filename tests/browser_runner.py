"""Runs the scripts of tests/browser in Node and Chromium; skips, saying what is missing, where they cannot run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import warnings
from functools import cache
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock

FOLDER = Path(__file__).parent / "browser"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 1800  # a script that takes longer hangs
AGAIN = "passes at a second try only, or not at all: "  # of tests/browser/canvas.mjs


def missing_program() -> str | None:
    """The program that the browser tests need and this machine lacks, or None."""
    if not (os.environ.get("CHROMIUM_PATH") or any(shutil.which(name) for name in BROWSERS)):
        return "no Chromium; install chromium or set CHROMIUM_PATH"
    if not (shutil.which("node") and shutil.which("npm")):
        return "no node and npm"
    return None


@cache
def missing() -> str | None:
    """What keeps the browser tests from running, or None."""
    if program := missing_program():
        return program
    with FileLock(FOLDER / ".npm.lock"):  # of the processes that run tests, one installs
        if (FOLDER / "node_modules" / "playwright-core").is_dir():
            return None
        installed = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund"], cwd=FOLDER, capture_output=True, text=True, timeout=900
        )
    return None if installed.returncode == 0 else f"npm ci failed: {installed.stderr[-300:]}"


def run_script(name: str, *arguments: str) -> list[dict]:
    """Output of tests/browser/<name>, one JSON object a line."""
    done = _run([str(FOLDER / name), *arguments], {}, "canvas")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_tests(names: list[str], url: str) -> dict[str, tuple[bool, str]]:
    """Runs tests of tests/browser in one browser on the ComfyUI at a URL. For each file, whether all its tests passed
    and what was said of them; what they measured is printed."""
    wish = {"COMFY_URL": url, "TESTS": json.dumps(names)}
    output = _test("all.mjs", wish, "canvas")
    _, *parts = re.split(r"^# Subtest: (.+)$", output, flags=re.MULTILINE)
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: (_passed(name, told.get(name, "")), told.get(name, output)) for name in names}


def run_live(address: str, name: str = "live.test.mjs") -> tuple[bool, str]:
    """Runs the tests of the page of a live walk that is served at an address: whether all passed, and what was said."""
    output = _test(name, {"LIVE_URL": address}, "walk")
    passed = all(re.search(end, output, re.MULTILINE) for end in (r"^# fail 0$", r"^# pass [1-9]"))
    return passed, output


def _test(name: str, environment: dict[str, str], kind: str) -> str:
    """Output of the tests of tests/browser/<name>; what they measured is printed, and second tries are warned of."""
    output = _run(["--test", "--test-reporter=tap", str(FOLDER / name)], environment, kind).stdout
    print("\n".join(line for line in output.splitlines() if line.startswith("# \\#")))
    for line in output.splitlines():
        if AGAIN in line:
            warnings.warn(line.strip(), stacklevel=1)
    return output


def _passed(name: str, told: str) -> bool:
    """Whether a suite is told to have passed, with tests in it."""
    ended = re.search(rf"^ok \d+ - {re.escape(name)}$", told, re.MULTILINE)
    return bool(ended and re.search(r"^ {8}ok ", told, re.MULTILINE))


def _run(arguments: list[str], environment: dict[str, str], kind: str) -> subprocess.CompletedProcess[str]:
    """Run Node, of a kind once at a time: two canvases drawn in software leave a small machine no time, and the pages
    of walks mostly wait."""
    if reason := missing():
        pytest.skip(f"BROWSER TESTS SKIPPED: {reason}")
    with FileLock(FOLDER / f".{kind}.lock"):
        process = subprocess.Popen(
            ["node", *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        ending = Timer(SECONDS, os.killpg, (process.pid, signal.SIGTERM))
        ending.start()
        try:
            told = process.communicate()
        finally:
            ending.cancel()
            if process.poll() is None:  # the tests were interrupted
                os.killpg(process.pid, signal.SIGTERM)
        return subprocess.CompletedProcess(process.args, process.returncode, *told)
