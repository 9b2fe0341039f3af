"""The output of a run (a video file, a pipe or PNG files), and its checks in advance."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...outputs import lock_output, part_of
from ...pipeline.geometry import Geometry
from ..options import STDOUT
from .existing import refuse_existing

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov")
_NUMBER = re.compile(r"(\*|%0?\d*d)")


@dataclass(frozen=True)
class Target:
    """The output of a run: a video file, a pipe, PNG files, or a list in memory.

    path: the video file or pipe, or the folder of the PNG files.
    pattern: the PNG files' names, such as "frame_%05d.png"; None for other outputs.
    """

    path: Path
    pattern: str | None = None
    in_memory: list[np.ndarray] | None = None
    """The list to which arrays of frames, uint8 [F, H, W, 3], are appended. None if the frames are written to files or
    a pipe."""
    recipe: str = ""
    """The record of the run as JSON, for the metadata."""
    overwrite: bool = False
    """Whether a run replaces existing PNG files. If true, the run also deletes the surplus PNG files of an earlier,
    longer video."""

    @property
    def is_pipe(self) -> bool:
        """Whether the video is written to standard output or to a named pipe."""
        return str(self.path) == STDOUT or self.path.is_fifo()

    @property
    def playable_copy(self) -> Path:
        """The path of a temporary copy of the video that can be played during the run."""
        return self.path.parent / f"{self.path.stem}.part.mp4"

    def files(self, first: int, frames: int) -> list[Path]:
        """Return the paths that a run writes: the video, or `frames` PNG files from number `first` on. Return [] for a
        pipe or a list in memory."""
        if self.in_memory is not None:
            return []
        if self.pattern is not None:
            return [self.path / (self.pattern % number) for number in range(first, first + frames)]
        return [] if self.is_pipe else [self.path]

    def files_after(self, number: int) -> Iterator[Path]:
        """Yield the existing PNG files numbered `number`, `number` + 1 and so on, up to the first missing one."""
        while self.pattern is not None and (file := self.path / (self.pattern % number)).is_file():
            yield file
            number += 1

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the output files within this context. Raises InputError if another run has locked one, and for a named
        pipe without a reader."""
        if self.in_memory is not None or str(self.path) == STDOUT:
            yield
        elif self.is_pipe:
            with _hold_pipe(self.path):
                yield
        elif self.pattern is None:
            with lock_output(self.path), lock_output(self.playable_copy):
                yield
        else:
            parts = re.sub(r"%0?\d*d", "*", escape(self.pattern)).replace("%%", "%")
            with lock_output(self.path / self.pattern, parts):
                yield

    @property
    def folder(self) -> Path:
        return self.path.parent if self.pattern is None else self.path


def find_target(output: str | Path | None, overwrite: bool = False) -> Target:
    """Return the Target for the option `output`: a video such as x.mp4, PNG files (a folder or dir/*.png), "-" for
    standard output, or None for memory. Raises InputError for anything else. `overwrite`: whether existing PNG files
    are replaced."""
    if output is None:
        return Target(Path(), in_memory=[])
    path = Path(output)
    if not str(output) or path.name.lower() in VIDEO_SUFFIXES:
        raise InputError(f"`output` {str(output)!r}: the file has no name; give one, such as video.mp4")
    if str(path) == STDOUT and sys.stdout is None:
        raise InputError("`output` -: standard output is closed; redirect it to a program or a file")
    if Target(path).is_pipe:
        return Target(Path(STDOUT) if _is_stdout(path) else path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"`output` {path} is a device; name a video's file or a folder, or - for standard output")
    if path.suffix.lower() == ".png":
        parts = _NUMBER.split(path.name)
        if len(parts) != 3:
            raise InputError(f"`output` {path}: a video is many PNG files; put one * or %05d in the name")
        before, number, after = parts[0].replace("%", "%%"), parts[1], parts[2].replace("%", "%%")
        return Target(path.parent, before + ("%05d" if number == "*" else number) + after, overwrite=overwrite)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        if path.is_dir():
            raise InputError(f"`output` {path} is a folder; name a file in it, or a folder without a video's suffix")
        return Target(path)
    if path.is_file() or (path.suffix and not path.is_dir()):
        raise InputError(f"`output` {path}: expected {', '.join(VIDEO_SUFFIXES)}, a folder, or a *.png pattern")
    return Target(path, "frame_%05d.png", overwrite=overwrite)


def _is_stdout(pipe: Path) -> bool:
    try:
        return str(pipe) == STDOUT or os.path.samestat(pipe.stat(), os.fstat(1))
    except OSError:  # raised for a closed standard output
        return False


def check_target(target: Target, geometry: Geometry) -> None:
    """Raise InputError if the output cannot be written or the disk is too full for a video of this `geometry`."""
    if target.is_pipe or target.in_memory is not None:
        return
    folder = check_folder("output", target.path, target.folder)
    pixels = geometry.frames * geometry.height * geometry.width
    needed = pixels * 3 if target.pattern else pixels * 3 // 2  # an upper bound; a video as YUV 4:2:0
    check_name("output", target.files(0, 1)[0])
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"`output` {target.path}: {needed / 1e6:.0f} MB may be needed, the disk has {free / 1e6:.0f} MB free; "
            "make room or write elsewhere"
        )


def check_new(target: Target, first: int, frames: int, image: str | Path | None, overwrite: bool) -> None:
    """Raise InputError if an output file is a folder or the input `image`, or if it exists and `overwrite` is false.
    `first`, `frames`: the first PNG file's number and the number of PNG files."""
    video = target.pattern is None and target.in_memory is None and not target.is_pipe
    removed = target.files_after(first + frames) if overwrite else ()
    for file in (*target.files(first, frames), *([target.playable_copy] if video else []), *removed):
        refuse_existing(file, overwrite, image)


def check_name(option: str, file: Path) -> None:
    """Raise InputError if the name of `file` is too long with the suffix ".part", which the unfinished file gets. The
    message names `option`, the option that contains the file's name."""
    try:
        part_of(file).exists()
    except OSError as error:
        raise InputError(
            f"`{option}` {file}: {error.strerror}, with the suffix .part of an unfinished file; choose a shorter name"
        ) from error


def check_folder(option: str, path: Path, folder: Path) -> Path:
    """Return `folder`, or its nearest existing parent if it does not exist. Raise InputError if files cannot be created
    there. `option`, `path`: the user's option and its value, for the message."""
    folder = folder.absolute()
    while not folder.exists():
        part_of(folder)  # raises for a circle of links
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"`{option}` {path} cannot be written: {error.strerror} ({folder})") from error


def leftover_notes(target: Target, end: int) -> list[str]:
    """Return a list with one note if the folder has PNG files of an earlier, longer video, from number `end` on.
    Otherwise return []. The note says whether these files stay or are deleted."""
    after = [file.name for file in target.files_after(end)]
    if not after:
        return []
    becomes = "are removed" if target.overwrite else "stay"
    return [f"{target.path} holds a longer video: its files from {after[0]} to {after[-1]} {becomes}."]


@contextmanager
def _hold_pipe(pipe: Path) -> Iterator[None]:
    """Hold a named pipe open, so that its reader waits for the video. Raises InputError without a reader."""
    try:
        opened = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(
            f"`output` {pipe}: nobody reads this pipe ({error.strerror}); start the program that reads it first"
        ) from error
    try:
        yield
    finally:
        os.close(opened)
