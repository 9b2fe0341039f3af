"""OUT/manifest.jsonl, which says what became of each job of a batch, and the lock of its folder."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...errors import InputError
from .jobs import Job

MANIFEST = "manifest.jsonl"
LOCK = "manifest.lock"
DONE, FAILED = "done", "failed"
_CUT_SHORT = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*")')
"""The beginning of a row, with whose it is."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its video was written, or what went wrong. `seconds`: since the video before it."""

    job: Job
    seed: int
    seconds: float = 0.0
    error: str | None = None


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keeps other batches out of the folder. The lock ends with its process. Raises InputError where another has it."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout:
        raise InputError(f"{folder}: another batch is at work in this folder; wait for its end, or name another folder"
                         ) from None  # fmt: skip


class Manifest:
    """A row for each job that was done or has failed, in the order of their ends."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / MANIFEST
        self._rows = self._read()

    def __contains__(self, job: Job) -> bool:
        """Whether a batch has made, or tried to make, this job's video."""
        return job.name in self._rows

    def why(self, job: Job) -> str | None:
        """Why the job's video is made; empty where it is not there. None where it is there as it was written, made
        with the job's settings."""
        row = self._rows.get(job.name)
        if row is None or row["status"] != DONE:
            return ""
        file, given = self.folder / row["file"], job.settings()
        if not file.is_file():
            return ""
        changed = [name for name, value in given.items() if row["settings"].get(name) != value]
        if changed or row["settings"].keys() - given.keys():
            options = ", ".join(changed).replace("max_area", "size") or "its settings"
            return f"{options} changed since {file} was made, so it is made again"
        as_written = _digest(file) == row["sha256"]
        return None if as_written else f"{file} is no longer the file that was written, so it is made again"

    def note(self, outcome: Outcome) -> None:
        """Adds what became of a job. One that failed is tried again by the next run."""
        found: dict[str, Any] = {"status": FAILED, "error": outcome.error}
        if outcome.error is None:
            video = outcome.job.video(self.folder)
            found = {"status": DONE, "file": video.name, "seed": outcome.seed, "seconds": round(outcome.seconds, 2)}
            found["sha256"] = _digest(video)
        row = {"name": outcome.job.name, **found, "settings": outcome.job.settings()}
        self._rows[outcome.job.name] = row
        cut_short = self.path.is_file() and self.path.read_bytes()[-1:] not in (b"", b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n" * cut_short + json.dumps(row, ensure_ascii=False) + "\n")

    def _read(self) -> dict[str, dict]:
        """The last row of each job. A kill may have cut the last line short, within a letter too."""
        if not self.path.is_file():
            return {}
        text = self.path.read_text(encoding="utf-8", errors="replace")
        return {row["name"]: row for row in map(_row, StringIO(text)) if row is not None}


def _row(line: str) -> dict[str, Any] | None:
    """A line's row. Of one that was cut short, or that lacks something, no more than whose it is."""
    try:
        row = json.loads(line)
        name = row["name"]
        if row["status"] == DONE and isinstance(row["settings"], dict) and all(row[key] for key in ("file", "sha256")):
            return row
    except (ValueError, RecursionError, TypeError, KeyError):
        found = _CUT_SHORT.match(line)
        name = None
        with suppress(ValueError):
            name = json.loads(found[1]) if found else None
    return {"name": name, "status": FAILED} if isinstance(name, str) else None


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
