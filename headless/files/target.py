"""Where the frames of a run go. It is checked before the run."""

import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InputError
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

    @property
    def folder(self) -> Path:
        """The folder that files are written into."""
        return self.path.parent if self.pattern is None else self.path


def find_target(output: str | Path | None) -> Target:
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
        return Target(path.parent, before + ("%05d" if number == "*" else number) + after)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        if path.is_dir():
            raise InputError(f"`output` {path} is a folder; name a file in it, or a folder without a video's suffix")
        return Target(path)
    if path.is_file() or (path.suffix and not path.is_dir()):
        raise InputError(f"`output` {path}: expected {', '.join(VIDEO_SUFFIXES)}, a folder, or a *.png pattern")
    return Target(path, "frame_%05d.png")


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
        file.with_name(f"{file.name}.part").exists()
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
    """Says it if the folder has PNG files of a longer video than one of `frames`, which stay beside this one's."""
    name = None if target.pattern is None else target.pattern % frames
    if name is None or not (target.path / name).exists():
        return []
    return [f"{target.path} holds a longer video: its files from {name} on stay beside this one's."]
