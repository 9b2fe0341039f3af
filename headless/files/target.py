"""Where the frames of a run go. It is checked before the run."""

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
    """Where the frames go: a video file, a pipe, or PNG files called `pattern` (printf style) in a folder."""

    path: Path
    pattern: str | None = None
    kept: list[np.ndarray] | None = None
    """Gets the frames of a video that is not written."""
    recipe: str = ""
    """How the video is made, for its metadata."""
    overwrite: bool = False
    """Whether files that are there may be replaced; of PNG files also those of a longer video after the last one."""

    @property
    def is_pipe(self) -> bool:
        """Whether the video goes to standard output ("-") or into a named pipe."""
        return str(self.path) == STDOUT or self.path.is_fifo()

    @property
    def growing(self) -> Path:
        """The video as long as it grows: fragmented mp4, which can be watched meanwhile."""
        return self.path.with_name(f"{self.path.stem}.part.mp4")

    def files(self, first: int, frames: int) -> list[Path]:
        """The video's file, or the PNG files of that many frames, numbered from `first` on; none of a pipe."""
        if self.kept is not None:
            return []
        if self.pattern is not None:
            return [self.path / (self.pattern % number) for number in range(first, first + frames)]
        return [] if self.is_pipe else [self.path]

    def files_after(self, number: int) -> Iterator[Path]:
        """The PNG files that are there with this number and the following ones, up to the first gap."""
        while self.pattern is not None and (file := self.path / (self.pattern % number)).is_file():
            yield file
            number += 1

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Keep other runs away from the files while this block runs. Raises InputError if another run writes one, or if
        nobody reads a named pipe, which would be waited for."""
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
    """The target that `output` names: `x.mp4` is a video; a folder, a name without suffix, `dir/*.png` and
    `dir/f_%04d.png` are PNG files; `-` is standard output. With None the frames are kept.

    Raises InputError for no name, for another suffix, for a video that is an existing folder, for a folder that is an
    existing file and for a standard output that is closed.
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
    """Raises InputError when the target cannot be written, or the disk has no room for it. Creates nothing."""
    if target.is_pipe or target.kept is not None:
        return
    folder = check_folder("output", target.path, target.folder)
    pixels = geometry.frames * geometry.height * geometry.width
    needed = pixels * 3 if target.pattern else pixels * 3 // 2  # at most: as RGB; a video as uncompressed YUV 4:2:0
    check_name("output", target.files(0, 1)[0])
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"`output` {target.path}: {needed / 1e6:.0f} MB may be needed, the disk has {free / 1e6:.0f} MB free; "
            "make room or write elsewhere"
        )


def check_new(target: Target, first: int, frames: int, image: str | Path | None, overwrite: bool) -> None:
    """Raises InputError where a run of `frames` frames would replace its start image, or, unless it may `overwrite`,
    any file; also the video that a killed run has left."""
    video = target.pattern is None and target.kept is None and not target.is_pipe
    for file in (*target.files(first, frames), *([target.growing] if video else [])):
        refuse_existing(file, overwrite, image)


def check_name(option: str, file: Path) -> None:
    """Raise InputError if the name of the option's `file` is too long for the ending of an unfinished file."""
    try:
        part_of(file).exists()
    except OSError as error:
        raise InputError(
            f"`{option}` {file}: {error.strerror}, with the .part that it ends in until it is whole; name a shorter one"
        ) from error


def check_folder(option: str, path: Path, folder: Path) -> Path:
    """The folder on the disk in which the option's `path` would appear: `folder`, or what there is of it. Raises
    InputError where no file can be made in it."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"`{option}` {path} cannot be written: {error.strerror} ({folder})") from error


def files_left(target: Target, frames: int) -> list[str]:
    """Return a message on PNG files of a longer video than one of `frames`, if there are any."""
    after = [file.name for file in target.files_after(frames)]
    if not after:
        return []
    becomes = "are removed" if target.overwrite else "stay beside this one's"
    return [f"{target.path} holds a longer video: its files from {after[0]} to {after[-1]} {becomes}."]


@contextmanager
def _read_pipe(pipe: Path) -> Iterator[None]:
    """Hold a named pipe open, whose reader would else see its end before the video. Raises InputError if nobody reads
    the pipe."""
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
