"""The output of a run, which is checked before the run starts."""

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
from ...outputs import part_of, taken
from ...pipeline.geometry import Geometry
from ..options import STDOUT
from .existing import refuse_existing

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov")
_NUMBER = re.compile(r"(\*|%0?\d*d)")


@dataclass(frozen=True)
class Target:
    """The destination of the frames: a video file, a pipe, or PNG files named by `pattern` (printf style) in a
    folder."""

    path: Path
    pattern: str | None = None
    kept: list[np.ndarray] | None = None
    """A list that receives the frames of a video that is not written."""
    recipe: str = ""
    """The record of the run, for the video's metadata."""
    overwrite: bool = False
    """Permission to replace existing files, including PNG files of a longer video beyond the last frame."""

    @property
    def is_pipe(self) -> bool:
        """Return whether the video goes to standard output ("-") or into a named pipe."""
        return str(self.path) == STDOUT or self.path.is_fifo()

    @property
    def growing(self) -> Path:
        """The path of the growing video: fragmented mp4, which can be watched while the run continues."""
        return self.path.with_name(f"{self.path.stem}.part.mp4")

    def files(self, first: int, frames: int) -> list[Path]:
        """Return the video's file, or the PNG files of `frames` frames numbered from `first` on; nothing for a pipe."""
        if self.kept is not None:
            return []
        if self.pattern is not None:
            return [self.path / (self.pattern % number) for number in range(first, first + frames)]
        return [] if self.is_pipe else [self.path]

    def files_after(self, number: int) -> Iterator[Path]:
        """Yield the existing PNG files with this number and the following ones, up to the first gap."""
        while self.pattern is not None and (file := self.path / (self.pattern % number)).is_file():
            yield file
            number += 1

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Lock the files against other runs while this block runs. Raises InputError if another run writes one of them,
        or if a named pipe has no reader, because opening it would block."""
        if self.kept is not None or str(self.path) == STDOUT:
            yield
        elif self.is_pipe:
            with _read_pipe(self.path):
                yield
        elif self.pattern is None:
            with taken(self.path), taken(self.growing):
                yield
        else:
            parts = re.sub(r"%0?\d*d", "*", escape(self.pattern)).replace("%%", "%")
            with taken(self.path / self.pattern, parts):
                yield

    @property
    def folder(self) -> Path:
        """The folder that files are written into."""
        return self.path.parent if self.pattern is None else self.path


def find_target(output: str | Path | None, overwrite: bool = False) -> Target:
    """Return the target that `output` names: `x.mp4` is a video; a folder, a name without suffix, `dir/*.png` and
    `dir/f_%04d.png` are PNG files; `-` is standard output. With None the frames are kept in memory.

    Raises InputError for an empty name, an unknown suffix, a video that is an existing folder, a folder that is an
    existing file, a device, and a closed standard output.
    """
    if output is None:
        return Target(Path(), kept=[])
    path = Path(output)
    if not str(output) or path.name.lower() in VIDEO_SUFFIXES:
        raise InputError(f"`output` {str(output)!r}: the file has no name; give one, such as video.mp4")
    if str(path) == STDOUT and sys.stdout is None:
        raise InputError("`output` -: standard output is closed; lead it into a program or a file")
    if Target(path).is_pipe:
        return Target(path)
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


def check_target(target: Target, geometry: Geometry) -> None:
    """Raise InputError if the target cannot be written, or the disk has too little room for it. Creates no file."""
    if target.is_pipe or target.kept is not None:
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
    """Raise InputError if a run of `frames` frames would replace its start image, or any other file while `overwrite`
    is false. The growing video that a killed run has left counts too."""
    video = target.pattern is None and target.kept is None and not target.is_pipe
    for file in (*target.files(first, frames), *([target.growing] if video else [])):
        refuse_existing(file, overwrite, image)


def check_name(option: str, file: Path) -> None:
    """Raise InputError if the name of the option's `file` is too long once the suffix of an unfinished file is
    added."""
    try:
        part_of(file).exists()
    except OSError as error:
        raise InputError(
            f"`{option}` {file}: {error.strerror}, with the .part that it ends in until it is whole; name a shorter one"
        ) from error


def check_folder(option: str, path: Path, folder: Path) -> Path:
    """Return the existing folder in which the option's `path` would be created: `folder` or its nearest parent. Raises
    InputError if no file can be made in it."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"`{option}` {path} cannot be written: {error.strerror} ({folder})") from error


def files_left(target: Target, frames: int) -> list[str]:
    """Return a message about PNG files left by a video longer than `frames`, if there are any."""
    after = [file.name for file in target.files_after(frames)]
    if not after:
        return []
    becomes = "are removed" if target.overwrite else "stay beside this one's"
    return [f"{target.path} holds a longer video: its files from {after[0]} to {after[-1]} {becomes}."]


@contextmanager
def _read_pipe(pipe: Path) -> Iterator[None]:
    """Hold a named pipe open, because its reader would otherwise see the end before the video. Raises InputError if the
    pipe has no reader."""
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
