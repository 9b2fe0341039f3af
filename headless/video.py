"""Writes frames to a video or to PNG files. The target is checked before the run, and appears only when complete."""

import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputError, require
from ..geometry import Geometry
from ..options import FPS, Progress

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov")
_NUMBER = re.compile(r"\*|%0?\d*d")


@dataclass(frozen=True)
class Target:
    """Where the frames go: a video file, or PNG files called `pattern` (printf style) in a folder."""

    path: Path
    pattern: str | None = None

    @property
    def folder(self) -> Path:
        """The folder that files are written into."""
        return self.path.parent if self.pattern is None else self.path


def find_target(output: str | Path) -> Target:
    """The target that `output` names: `x.mp4` is a video; a folder, a name without suffix, `dir/*.png` and
    `dir/f_%04d.png` are PNG files.

    Raises InputError for another suffix, for a video that is an existing folder and for a folder that is an existing
    file.
    """
    path = Path(output)
    if path.suffix.lower() == ".png":
        return _png_target(path)
    if path.suffix.lower() in VIDEO_SUFFIXES:
        if path.is_dir():
            raise InputError(f"`output` {path} is a folder; name a file in it, or a folder without a video's suffix")
        return Target(path)
    if path.is_file() or (path.suffix and not path.is_dir()):
        raise InputError(f"`output` {path}: expected {', '.join(VIDEO_SUFFIXES)}, a folder, or a *.png pattern")
    return Target(path, "frame_%05d.png")


def _png_target(path: Path) -> Target:
    if len(_NUMBER.findall(path.name)) != 1 or path.name.count("%") > 1:
        raise InputError(f"`output` {path}: a video is many PNG files; put one * or %05d in the name")
    return Target(path.parent, path.name.replace("*", "%05d"))


def check_target(target: Target, geometry: Geometry) -> None:
    """Raises InputError when the target cannot be written, or the disk has no room for it. Creates nothing."""
    folder = target.folder.absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"`output` {target.path} cannot be written: {error.strerror} ({folder})") from error
    needed, free = largest_size(target, geometry), shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"`output` {target.path}: {needed / 1e6:.0f} MB may be needed, the disk has {free / 1e6:.0f} MB free; "
            "make room or write elsewhere"
        )


def largest_size(target: Target, geometry: Geometry) -> int:
    """An upper bound of the output's bytes: uncompressed YUV 4:2:0 for a video, RGB for PNG files."""
    pixels = geometry.frames * geometry.height * geometry.width
    return pixels * 3 if target.pattern else pixels * 3 // 2


def write_frames(frames: np.ndarray, target: Target, fps: int = FPS, progress: Progress | None = None) -> Path:
    """Writes frames uint8 [F, H, W, 3] and returns the video's path, or the folder of the PNG files.

    The files are written into a temporary folder beside the target and renamed when complete, so that an interrupted
    run leaves nothing and an older video stays.
    """
    target.folder.mkdir(parents=True, exist_ok=True)
    progress = progress or (lambda _done, _total: None)
    with tempfile.TemporaryDirectory(prefix=".lingbot-", dir=target.folder) as scratch:
        if target.pattern is None:
            names = [target.path.name]
            _write_video(frames, Path(scratch, names[0]), fps, progress)
        else:
            names = [target.pattern % index for index in range(len(frames))]
            _write_png(frames, [Path(scratch, name) for name in names], progress)
        for name in names:
            os.replace(Path(scratch, name), target.folder / name)
    return target.path


def _write_png(frames: np.ndarray, files: list[Path], progress: Progress) -> None:
    from PIL import Image

    def save(frame: np.ndarray, file: Path) -> None:
        Image.fromarray(frame).save(file, compress_level=4)

    pool = ThreadPoolExecutor()  # zlib releases the interpreter's lock
    try:
        for index, _ in enumerate(pool.map(save, frames, files)):
            progress(index + 1, len(frames))
    finally:
        pool.shutdown(cancel_futures=True)


def _write_video(frames: np.ndarray, file: Path, fps: int, progress: Progress) -> None:
    av = require("av", '"lingbot-world[cli]"')
    with av.open(str(file), "w", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=fps, options={"crf": "17"})
        stream.pix_fmt = "yuv420p"
        stream.height, stream.width = frames.shape[1:3]
        for index, frame in enumerate(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            progress(index + 1, len(frames))
        container.mux(stream.encode())
