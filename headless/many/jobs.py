"""The jobs of `lingbot-world batch`, from a .jsonl or .csv file with a job in each line."""

import csv
import json
import math
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from io import StringIO
from pathlib import Path, PureWindowsPath
from typing import Any, get_args, get_type_hints

from ...errors import InputError
from ...fields import text_of
from ..options import CAMERAS, PARTS, GenerateOptions, parse_size

FOR_ALL = (
    *("ckpt_dir", "assets_dir", "release", "lora", "output", "save_state", "overwrite"),
    *("device", "decoder_device", "dtype", "vae_dtype"),
    *("residency", "camera_cache", "vae_tiling", "shard", "kv_cache"),
)
"""The options that are set once, for all jobs of a batch."""
_NUMBERS = {
    name: kind
    for name, hint in get_type_hints(GenerateOptions).items()
    for kind in (int, float)
    if kind in (hint, *get_args(hint))
}
"""The options that take a number, each with its type."""
_PATHS = ("image", "continue_from", "events", *PARTS)
_NAME = re.compile(r"[\w][\w .()+-]*")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?$", re.IGNORECASE)
_MAX_NAME_BYTES = 200
"""The maximum length in bytes of a job's name. File systems allow 255, and unfinished files have suffixes."""


@dataclass(frozen=True)
class Job:
    """A video of a batch.

    name: the file name without the suffix.
    camera: the option in CAMERAS and its value, such as ("keys", "w-10"), or None.
    """

    name: str
    options: GenerateOptions
    camera: tuple[str, str] | None

    def video(self, folder: Path) -> Path:
        return folder / f"{self.name}.mp4"

    def settings(self) -> dict[str, Any]:
        """Return the options that determine the video, as JSON values. An unset seed is None."""
        left_out = "output", "overwrite", *CAMERAS
        given = {name: value for name, value in asdict(self.options).items() if name not in left_out}
        return json.loads(json.dumps(given | {"camera": self.camera}, default=str))


def read_jobs(path: Path, defaults: GenerateOptions, folder: Path) -> list[Job]:
    """Return the jobs in a .jsonl or .csv file, each with its video in `folder` as output. `defaults`: the options that
    a job does not set. Raises InputError for an invalid or repeated job."""
    jobs: dict[str, Job] = {}
    for line, given in _lines(path):
        try:
            job = _job(given, f"{line:05d}", path.absolute().parent, defaults, folder)
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from error
        other = jobs.setdefault(job.name.casefold(), job)
        if other is not job:
            also = "" if other.name == job.name else f", and one {other.name!r}, which is the same file on many systems"
            raise InputError(f"{path}, line {line}: a second job is called {job.name!r}{also}; give each its own name")
    if not jobs:
        raise InputError(f'{path}: no jobs in it; each line is one: {{"image": "a.jpg", "prompt": "..."}}')
    return list(jobs.values())


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = text_of(path)
    if path.suffix.lower() == ".csv":
        yield from _rows(path, text)
        return
    for number, line in enumerate(StringIO(text), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except (ValueError, RecursionError) as error:
            found = getattr(error, "msg", error)
            raise InputError(f"{path}, line {number}: not JSON ({found}); each line is one object") from error
        if not isinstance(given, dict):
            raise InputError(f"{path}, line {number}: expected an object in braces, found {type(given).__name__}")
        yield number, {key: value for key, value in given.items() if value is not None}


def _rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, non-empty values by column) of a .csv file."""
    rows = csv.DictReader(StringIO(text), strict=True)
    try:
        names = rows.fieldnames or ()
        if len(names) == 1 and re.search("[;\t]", names[0]):
            raise InputError(f"{path}, line 1: {names[0]!r} is one column; write commas between columns")
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise InputError(f"{path}, line 1: two columns are called {twice[0]!r}; leave one out")
        for row in rows:
            if None in row:
                raise InputError(f"{path}, line {rows.line_num}: more values than columns; quote texts with commas")
            given = {key: value for key, value in row.items() if value}
            if any(value.strip() for value in given.values()):
                yield rows.line_num, given
    except csv.Error as error:
        raise InputError(
            f"{path}, line {rows.line_num}: not a table ({error}); a quoted text begins and ends with "
            'one ", and one in it is doubled'
        ) from error


def _job(given: Mapping[str, Any], number: str, base: Path, defaults: GenerateOptions, folder: Path) -> Job:
    known = {field.name for field in fields(GenerateOptions)} - {*FOR_ALL, "max_area"} | {*CAMERAS, "name", "size"}
    unknown = [str(name) for name in given if name not in known]
    if unknown:
        raise InputError(f"unknown: {', '.join(unknown):.300}; a job takes {', '.join(sorted(known))}")
    name = str(given.get("name", number))
    if not _NAME.fullmatch(name) or name.endswith((".", " ")) or _RESERVED.match(name):
        raise InputError(f"the name {name!r} cannot be a file's; use letters, digits, - and _")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise InputError(
            f"the name {name[:40]!r}... is too long for a file's: {len(name.encode())} bytes, at most {_MAX_NAME_BYTES}"
        )
    values = {key: _value(key, value) for key, value in given.items() if key not in ("name", "size", *CAMERAS)}
    values |= {key: _path(base, values[key]) for key in _PATHS if key in values}
    if "size" in given:  # this replaces a width and height that the command sets for all jobs
        values = {"width": None, "height": None, **values, "max_area": math.prod(_value("size", given["size"]))}
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
    return kind, _path(base, str(given[kind])) if kind == "action_path" else str(given[kind])


def _path(base: Path, given: str) -> str:
    """Return the path `given` in a job, resolved against the folder `base`. On POSIX a backslash also separates
    folders, unless a file of this name exists."""
    if not given:
        raise InputError("a path is empty; name one, or leave it out")
    path, windows = base / os.path.expanduser(given), PureWindowsPath(given)
    if os.name != "nt" and "\\" in given and not path.exists():  # a list that was written on Windows
        path = Path(given) if windows.drive else base / windows.as_posix()
    return str(path)


def _value(name: str, given: Any) -> Any:
    expected = "a number"
    try:
        if name == "guide_scale":
            parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given]
            return tuple(_number(part, float) for part in parts)
        if name == "size":
            return parse_size(str(given))
        if name == "schedule" and isinstance(given, list):
            return tuple(_number(part, int) for part in given)
        kind = _NUMBERS.get(name)
        expected = "text" if kind is None else "a whole number" if kind is int else expected
        return _text(given) if kind is None else _number(given, kind)
    except ArgumentTypeError as error:
        raise InputError(f"{name} {error}") from None
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} {given!r:.200}: expected {expected}") from None


def _number(given: Any, kind: type) -> Any:
    number = kind(given)
    if isinstance(given, bool) or (kind is int and isinstance(given, float) and number != given):
        raise ValueError
    return number


def _text(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise TypeError
    return str(given)
