"""Writes frames to a video, a pipe or PNG files, at once or as they come. The target is checked before the run."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from ..errors import InputError, require
from ..options import FPS, Progress
from ..pipeline.geometry import Geometry
from .interrupts import LaterInterruptsWait

STDOUT = "-"
FRAMES_AT_ONCE = 12
MOST_WAITING = 2
"""Parts of a video that may wait to be encoded."""
VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov")
_NUMBER = re.compile(r"(\*|%0?\d*d)")


@dataclass(frozen=True)
class Target:
    """Where the frames go: a video file, a pipe, or PNG files called `pattern` (printf style) in a folder."""

    path: Path
    pattern: str | None = None

    @property
    def is_pipe(self) -> bool:
        """Whether the video goes to standard output ("-") or into a named pipe."""
        return str(self.path) == STDOUT or self.path.is_fifo()

    def open_pipe(self) -> AbstractContextManager[IO[bytes]]:
        """The pipe, open for writing."""
        return nullcontext(sys.stdout.buffer) if str(self.path) == STDOUT else self.path.open("wb")

    @property
    def folder(self) -> Path:
        """The folder that files are written into."""
        return self.path.parent if self.pattern is None else self.path


def find_target(output: str | Path) -> Target:
    """The target that `output` names: `x.mp4` is a video; a folder, a name without suffix, `dir/*.png` and
    `dir/f_%04d.png` are PNG files; `-` is standard output.

    Raises InputError for another suffix, for a video that is an existing folder, for a folder that is an existing file
    and for a standard output that is closed.
    """
    path = Path(output)
    if str(path) == STDOUT and sys.stdout is None:
        raise InputError("`output` -: standard output is closed; lead it into a program or a file")
    if Target(path).is_pipe:
        return Target(path)
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
    parts = _NUMBER.split(path.name)
    if len(parts) != 3:
        raise InputError(f"`output` {path}: a video is many PNG files; put one * or %05d in the name")
    before, number, after = parts[0].replace("%", "%%"), parts[1], parts[2].replace("%", "%%")
    return Target(path.parent, before + ("%05d" if number == "*" else number) + after)


def check_target(target: Target, geometry: Geometry) -> None:
    """Raises InputError when the target cannot be written, or the disk has no room for it. Creates nothing."""
    if target.is_pipe:
        return
    folder = check_folder("output", target.path, target.folder)
    needed, free = largest_size(target, geometry), shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(
            f"`output` {target.path}: {needed / 1e6:.0f} MB may be needed, the disk has {free / 1e6:.0f} MB free; "
            "make room or write elsewhere"
        )


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


def largest_size(target: Target, geometry: Geometry) -> int:
    """An upper bound of the output's bytes: uncompressed YUV 4:2:0 for a video, RGB for PNG files."""
    pixels = geometry.frames * geometry.height * geometry.width
    return pixels * 3 if target.pattern else pixels * 3 // 2


def write_frames(frames: np.ndarray, target: Target, fps: int = FPS, progress: Progress | None = None) -> Path:
    """Writes frames uint8 [F, H, W, 3] and returns the video's path, or the folder of the PNG files."""
    with FrameWriter(target, fps) as writer:
        for start in range(0, len(frames), FRAMES_AT_ONCE):
            writer.write(frames[start : start + FRAMES_AT_ONCE])
            if progress is not None:
                progress(writer.frames, len(frames))
    return target.path


class FrameWriter:
    """Writes a video as its frames come; a thread of its own encodes while the caller makes the next ones.

    The file, or the PNG files, are written into a temporary folder beside the target and renamed at the end, so that
    an interrupted run leaves nothing and an older video stays. With `keep_partial` an interrupted run leaves a playable
    video of what was written. A pipe is written to directly. PNG files are numbered from `first` on."""

    def __init__(self, target: Target, fps: int = FPS, *, keep_partial: bool = False, first: int = 0) -> None:
        self.frames = 0
        self._target, self._keep_partial = target, keep_partial
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future] = deque()
        if target.pattern is not None:
            self._file: _PngFiles | _VideoFile | VideoPipe = _PngFiles(target.pattern, self._scratch(), first)
        elif target.is_pipe:
            self._file = VideoPipe(self._stack.enter_context(target.open_pipe()), fps)
        else:
            self._file = _VideoFile(self._scratch() / target.path.name, fps)

    def __enter__(self) -> FrameWriter:
        return self

    def write(self, frames: np.ndarray) -> None:
        """Frames uint8 [F, H, W, 3]. Waits where the thread is two parts behind; raises what it met before."""
        self._waiting.append(self._thread.submit(self._file.write, frames))
        self.frames += len(frames)
        while len(self._waiting) > MOST_WAITING or self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._while_closing(), self._stack, self._thread:
            for future in self._waiting:
                future.exception() if error else future.result()
            if self.frames and (error is None or self._keep_partial):
                for name in self._file.close():
                    os.replace(self._scratch_folder / name, self._target.folder / name)

    def _while_closing(self) -> AbstractContextManager:
        """An interrupt waits until a file is whole. It may end the wait for whoever reads a pipe."""
        return nullcontext() if self._target.is_pipe else LaterInterruptsWait(hold=True)

    def _scratch(self) -> Path:
        self._target.folder.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".lingbot-", dir=self._target.folder)
        self._scratch_folder = Path(self._stack.enter_context(folder))
        return self._scratch_folder


class _PngFiles:
    """Numbered PNG files. They are compressed by several threads: zlib releases the interpreter's lock."""

    def __init__(self, pattern: str, folder: Path, first: int) -> None:
        self._pattern, self._folder, self._first = pattern, folder, first
        self._names: list[str] = []

    def write(self, frames: np.ndarray) -> None:
        begin = self._first + len(self._names)
        names = [self._pattern % index for index in range(begin, begin + len(frames))]
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._save, names, frames))
        self._names += names

    def _save(self, name: str, frame: np.ndarray) -> None:
        from PIL import Image

        Image.fromarray(frame).save(self._folder / name, compress_level=4)

    def close(self) -> list[str]:
        """The files' names."""
        return self._names


class _VideoFile:
    """An H.264 video in a file."""

    def __init__(self, file: Path, fps: int) -> None:
        av = require("av", '"lingbot-world[cli]"')
        self._frame = av.VideoFrame.from_ndarray
        self._name = file.name
        self._container = av.open(str(file), "w", options={"movflags": "+faststart"})
        self._stream = self._container.add_stream("libx264", rate=fps, options=_encoding())
        self._stream.pix_fmt = "yuv420p"

    def write(self, frames: np.ndarray) -> None:
        if not self._stream.is_open:
            self._stream.height, self._stream.width = frames.shape[1:3]
        for frame in frames:
            self._container.mux(self._stream.encode(self._frame(frame, format="rgb24")))

    def close(self) -> list[str]:
        """The file's name."""
        self._container.mux(self._stream.encode())
        self._container.close()
        return [self._name]


class VideoPipe:
    """An H.264 video into a pipe: each part can be played when it is written.

    libx264 looks 40 frames ahead, and cannot go on once it was asked for the last of them. So each part gets an encoder
    of its own and begins with a key frame. The container's writer closes a frame's fragment when the next frame comes:
    the last frame of a part waits for the part that follows."""

    def __init__(self, pipe: IO[bytes], fps: int) -> None:
        av = require("av", '"lingbot-world[cli]"')
        self._frame, self._new_encoder = av.VideoFrame.from_ndarray, av.CodecContext.create
        self._pipe, self._made, self._fps, self._frames = pipe, BytesIO(), fps, 0
        options = {"movflags": "+frag_every_frame+empty_moov+default_base_moof+skip_trailer", "flush_packets": "1"}
        self._container = av.open(_Written(self._made), "w", format="mp4", options=options)
        self._stream = self._container.add_stream("libx264", rate=fps, options=_encoding())
        self._stream.pix_fmt = "yuv420p"

    def write(self, frames: np.ndarray) -> None:
        if not self._stream.is_open:
            self._stream.height, self._stream.width = frames.shape[1:3]
        encoder = self._encoder()
        packets = [packet for frame in frames for packet in encoder.encode(self._numbered(frame))] + encoder.encode()
        for packet in packets:
            packet.stream = self._stream
        self._container.mux(packets)
        self._send()

    def _send(self) -> None:
        """What the container's writer has made goes into the pipe. It cannot write there itself, since it does not tell
        why a pipe is broken."""
        self._pipe.write(self._made.getvalue())
        self._pipe.flush()
        self._made.seek(0)
        self._made.truncate()

    def _encoder(self) -> Any:
        """An encoder like the stream's own, which only writes the video's header."""
        encoder, like = self._new_encoder("libx264", "w"), self._stream.codec_context
        encoder.width, encoder.height, encoder.pix_fmt = like.width, like.height, like.pix_fmt
        encoder.framerate, encoder.time_base = Fraction(self._fps), Fraction(1, self._fps)
        encoder.flags, encoder.options = like.flags, _encoding()
        return encoder

    def _numbered(self, pixels: np.ndarray) -> Any:
        frame = self._frame(pixels, format="rgb24")
        frame.pts, frame.time_base = self._frames, Fraction(1, self._fps)
        self._frames += 1
        return frame

    def close(self) -> list[str]:
        """No files' names: a pipe has none."""
        self._container.close()
        self._send()
        return []


class _Written:
    """A file that can only be written to, like a pipe, so that nobody goes back in it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def _encoding() -> dict[str, str]:
    """Options of libx264."""
    return {"crf": "17", **_same_bytes()}


def _same_bytes() -> dict[str, str]:
    """Options of libx264 by which the same frames become the same bytes. Its AVX-512 code (for macroblock trees) reads
    memory that it has not written, so that frame types and sizes depend on what lay there; its AVX2 code does not."""
    import torch

    return {"x264-params": "asm=avx2"} if torch.backends.cpu.get_cpu_capability() == "AVX512" else {}
