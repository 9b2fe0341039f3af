"""The manifest of a batch, manifest.jsonl with each job's outcome, and the lock of the batch's folder."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...errors import InputError
from .inputs import InputHashes
from .jobs import Job

MANIFEST = "manifest.jsonl"
LOCK = "manifest.lock"
DONE, FAILED = "done", "failed"
FILES = "files"
"""The key under which a row of the batch's manifest has the hashes of a job's input files."""
_CUT_SHORT = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*")')
"""A pattern that finds the job's name in an incomplete row."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one job of a batch. Similar jobs run together, as a group.

    seconds: the time since the group's previous video or the group's start; 0 after a failure.
    error: the reason of a failure, or None.
    """

    job: Job
    seed: int
    seconds: float = 0.0
    error: str | None = None


@contextmanager
def lock_batch(folder: Path) -> Iterator[None]:
    """Lock a batch's folder within this context. Raises InputError if another batch has locked the folder."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout:
        raise InputError(
            f"{folder}: another batch is at work in this folder; wait for its end, or name another folder"
        ) from None


class Manifest:
    """The manifest of a batch, with rows of finished and failed jobs. If a job has several rows, the last one
    counts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / MANIFEST
        self._rows = self._read()
        self._inputs = InputHashes()
        self._begun: dict[str, dict[str, str]] = {}

    def __contains__(self, job: Job) -> bool:
        return job.name in self._rows

    def is_current(self, job: Job, tell: Callable[[str], None]) -> bool:
        """Return whether the job has a finished video that is up to date. `tell(message)` gets what has changed since
        the video was made."""
        row = self._rows.get(job.name)
        if row is None or row["status"] != DONE or not (file := self.folder / row["file"]).is_file():
            return False
        changed = _changed_settings(row["settings"], job.settings())
        if not changed and isinstance(row.get(FILES), dict):  # rows of older versions have no hashes
            names = [name for name, mark in self._inputs.of(job.options).items() if row[FILES].get(name) != mark]
            changed = f"the content of {', '.join(names)}" if names else ""
        why = f"{changed} changed since {file} was made" if changed else ""
        if not changed and _digest(file) != row["sha256"]:
            why = f"{file} has changed since it was written"
        if why:
            tell(f"{job.name}: {why}, so it is made again")
        return not why

    def begin(self, jobs: Iterable[Job]) -> None:
        """Hash the jobs' input files before they run, for the rows that `note` appends."""
        self._begun |= {job.name: self._inputs.of(job.options) for job in jobs}

    def complete(self, jobs: Iterable[Job]) -> None:
        """Add hashes of input files to rows that an older version of this package wrote without them."""
        for job in jobs:
            row = self._rows[job.name]
            if FILES not in row:
                self._add(row | {FILES: self._inputs.of(job.options)})

    def note(self, outcome: Outcome) -> None:
        """Append a row with a job's outcome. Raises InputError if the manifest cannot be written."""
        found: dict[str, Any] = {"status": FAILED, "error": outcome.error}
        if outcome.error is None:
            video = outcome.job.video(self.folder)
            found = {"status": DONE, "file": video.name, "seed": outcome.seed, "seconds": round(outcome.seconds, 2)}
            found |= {"sha256": _digest(video), FILES: self._begun[outcome.job.name]}
        self._add({"name": outcome.job.name, **found, "settings": outcome.job.settings()})

    def _add(self, row: dict[str, Any]) -> None:
        self._rows[row["name"]] = row
        try:
            cut_short = self.path.is_file() and self.path.read_bytes()[-1:] not in (b"", b"\n")
            with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:  # as JSON escapes
                file.write("\n" * cut_short + json.dumps(row, ensure_ascii=False) + "\n")
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written ({error.strerror or error}); make room, or check its "
                "rights, and give the same command again"
            ) from error

    def _read(self) -> dict[str, dict]:
        if not self.path.is_file():
            return {}
        text = self.path.read_text(encoding="utf-8", errors="replace")
        return {row["name"]: row for row in map(_parse_row, StringIO(text)) if row is not None}


def _parse_row(line: str) -> dict[str, Any] | None:
    """Parse a line of the manifest. Return the whole row if it is the complete row of a finished job. Otherwise return
    the job's name with the status "failed", or None if the line has no name."""
    try:
        row = json.loads(line)
        name = row["name"]
        texts = all(isinstance(row[key], str) and row[key] for key in ("name", "file", "sha256"))
        if row["status"] == DONE and isinstance(row["settings"], dict) and texts:
            return row
    except (ValueError, RecursionError, TypeError, KeyError):
        found = _CUT_SHORT.match(line)
        name = None
        with suppress(ValueError):
            name = json.loads(found[1]) if found else None
    return {"name": name, "status": FAILED} if isinstance(name, str) else None


def _changed_settings(before: dict[str, Any], given: dict[str, Any]) -> str:
    """Compare a job's recorded settings `before` with the `given` ones. Return the changed settings' names as text for
    a message. The text is "its settings" if settings were only removed, and "" if nothing changed."""
    changed = [name for name, value in given.items() if _resolved(name, before.get(name)) != _resolved(name, value)]
    if not changed and before.keys() - given.keys():
        return "its settings"
    return ", ".join(changed).replace("max_area", "size")


def _resolved(name: str, value: Any) -> Any:
    """Return a setting's value with symbolic links in absolute paths resolved."""
    if isinstance(value, list):
        return [_resolved(name, each) for each in value]
    if isinstance(value, dict):
        return {key: _resolved(name, each) for key, each in value.items()}
    with suppress(ValueError):  # raised for a name that no file can have
        if isinstance(value, str) and name not in ("prompt", "negative") and os.path.isabs(value):
            return os.path.realpath(value)
    return value


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
