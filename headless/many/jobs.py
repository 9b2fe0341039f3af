"""The jobs of `lingbot-world batch`: a file with one a line, and the manifest that says what became of each."""

import csv
import hashlib
import json
import math
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...errors import InputError
from ..options import CAMERAS, PARTS, GenerateOptions, two_sides

MANIFEST = "manifest.jsonl"
LOCK = "manifest.lock"
DONE, FAILED, CHANGED = "done", "failed", "changed"
FOR_ALL = ("ckpt_dir", "assets_dir", "release", "output", "device", "dtype", "residency", "camera_cache", "vae_tiling",
           "vae_dtype", "lora", "shard", "kv_cache", "decoder_device", "save_state", "overwrite")  # fmt: skip
"""The options that a batch has once, not for each job."""
_WHOLE = ("width", "height", "frame_num", "sampling_steps", "seed", "window", "sink", "fps")
_NUMBERS = ("shift", "boundary", "reuse_threshold")
_PATHS = ("image", "continue_from", *PARTS)
_NAME = re.compile(r"[\w][\w .()+-]*")


@dataclass(frozen=True)
class Job:
    """One video of a batch. `camera` is one of CAMERAS and what was given for it, or None: no camera control."""

    name: str
    options: GenerateOptions
    camera: tuple[str, str] | None

    def video(self, folder: Path) -> Path:
        """Its file in the batch's folder."""
        return folder / f"{self.name}.mp4"

    def settings(self) -> dict[str, Any]:
        """What the video depends on, for the manifest; a seed that is drawn is None."""
        left_out = "output", "overwrite", *CAMERAS
        given = {name: value for name, value in asdict(self.options).items() if name not in left_out}
        return json.loads(json.dumps(given | {"camera": self.camera}, default=str))


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its video was written, or what went wrong. `seconds`: since the video before it."""

    job: Job
    seed: int
    seconds: float = 0.0
    error: str | None = None


def read_jobs(path: Path, defaults: GenerateOptions, folder: Path) -> list[Job]:
    """The jobs of a .jsonl or .csv file, whose videos go into `folder`. What a job leaves out is taken from `defaults`.
    Paths are relative to the file. Raises InputError that names file and line."""
    jobs: dict[str, Job] = {}
    for line, given in _lines(path):
        try:
            job = _job(given, f"{line:05d}", path.absolute().parent, defaults, folder)
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from error
        if job.name in jobs:
            raise InputError(f"{path}, line {line}: a second job is called {job.name!r}; give each its own name")
        jobs[job.name] = job
    if not jobs:
        raise InputError(f'{path}: no jobs in it; each line is one: {{"image": "a.jpg", "prompt": "..."}}')
    return list(jobs.values())


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from error
    if path.suffix.lower() == ".csv":
        yield from _rows(path, text)
        return
    for number, line in enumerate(StringIO(text), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error.msg}); each line is one object") from error
        if not isinstance(given, dict):
            raise InputError(f"{path}, line {number}: expected an object in braces, found {type(given).__name__}")
        yield number, {key: value for key, value in given.items() if value is not None}


def _rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each row's last line and its values, without empty ones."""
    rows = csv.DictReader(StringIO(text))
    for row in rows:
        if None in row:
            raise InputError(f"{path}, line {rows.line_num}: more values than columns; quote texts with commas")
        yield rows.line_num, {key: value for key, value in row.items() if value}


def _job(given: Mapping[str, Any], number: str, base: Path, defaults: GenerateOptions, folder: Path) -> Job:
    known = {field.name for field in fields(GenerateOptions)} - {*FOR_ALL, "max_area"} | {*CAMERAS, "name", "size"}
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        raise InputError(f"unknown: {', '.join(unknown)}; a job takes {', '.join(sorted(known))}")
    name = str(given.get("name", number))
    if not _NAME.fullmatch(name) or name.endswith((".", " ")):
        raise InputError(f"the name {name!r} cannot be a file's; use letters, digits, - and _")
    values = {key: _value(key, value) for key, value in given.items() if key not in ("name", "size", *CAMERAS)}
    values |= {key: str(base / values[key]) for key in _PATHS if key in values}
    if "size" in given:
        values["max_area"] = math.prod(_value("size", given["size"]))
    camera = _camera(given, base, defaults)
    action_path = camera[1] if camera is not None and camera[0] == "action_path" else None
    options = replace(defaults, **values, action_path=action_path, output=folder / f"{name}.mp4")
    if not options.prompt:
        raise InputError("prompt is missing")
    return Job(name, options, camera)


def _camera(given: Mapping[str, Any], base: Path, defaults: GenerateOptions) -> tuple[str, str] | None:
    found = [key for key in CAMERAS if given.get(key)]
    if len(found) > 1:
        raise InputError(f"{' and '.join(found)} exclude each other: a video has one camera")
    if not found:
        return None if defaults.action_path is None else ("action_path", str(defaults.action_path))
    (kind,) = found
    return kind, str(base / str(given[kind])) if kind == "action_path" else str(given[kind])


def _value(name: str, given: Any) -> Any:
    """A value as GenerateOptions takes it; a .csv file has texts alone."""
    kind = int if name in _WHOLE else float if name in _NUMBERS else None
    try:
        if name == "guide_scale":
            parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
            return tuple(float(part) for part in parts)
        if name == "size":
            return two_sides(str(given))
        if name == "schedule" and isinstance(given, list):
            return tuple(int(part) for part in given)
        if kind is None:
            return str(given)
        if isinstance(given, bool) or kind(given) != float(given):
            raise ValueError
        return kind(given)
    except ArgumentTypeError as error:
        raise InputError(f"{name} {error}") from None
    except (TypeError, ValueError):
        expected = "a number" if kind is not int else "a whole number"
        raise InputError(f"{name} {given!r}: expected {expected}") from None


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
    """OUT/manifest.jsonl: a row for each job that was done or has failed, in the order of their ends."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / MANIFEST
        self._rows = self._read()

    def found(self, job: Job) -> str:
        """DONE where the job's video is there as it was written, made with the job's settings; CHANGED where its file
        is another one by now; else nothing."""
        row = self._rows.get(job.name)
        if row is None or row["status"] != DONE or row["settings"] != job.settings():
            return ""
        file = self.folder / row["file"]
        return "" if not file.is_file() else DONE if _digest(file) == row["sha256"] else CHANGED

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
        """The last row of each job. A line that a kill cut short is passed over."""
        rows: dict[str, dict] = {}
        if self.path.is_file():
            for line in StringIO(self.path.read_text(encoding="utf-8")):
                try:
                    row = json.loads(line)
                    rows[row["name"]] = row
                except (json.JSONDecodeError, TypeError, KeyError):
                    continue
        return rows


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
