"""Write frames to a video file, a pipe or PNG files, while later frames are computed."""

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import TracebackType

import numpy as np

from ...options import FPS, Progress
from ...outputs import name_whole, part_of
from ..options import STDOUT
from ..process.interrupts import DelayInterrupts
from .encoding import RECIPE, PartEncoder, VideoEncoder
from .target import Target

FRAMES_AT_ONCE = 12
MAX_QUEUED_PARTS = 2
"""The maximum number of parts of a video that wait for the encoding thread."""


def write_frames(frames: np.ndarray, target: Target, fps: int = FPS, progress: Progress | None = None) -> Path:
    """Write frames, uint8 [F, H, W, 3], to `target`. Return the path of the video or of the PNG folder."""
    with FrameWriter(target, fps) as writer:
        for start in range(0, len(frames), FRAMES_AT_ONCE):
            writer.write(frames[start : start + FRAMES_AT_ONCE])
            if progress is not None:
                progress(writer.frames, len(frames))
    return target.path


class FrameWriter(AbstractContextManager["FrameWriter"]):
    """A writer of a video file, PNG files or a pipe, with an encoding thread. Files get final names when complete.

    keep_partial: whether an interrupted run leaves the frames written so far.
    first: the number of the first file, for PNG files.
    frames: the number of frames received.
    parts: the number of parts written. Each call of `write` adds one part.
    """

    def __init__(self, target: Target, fps: int = FPS, *, keep_partial: bool = False, first: int = 0) -> None:
        self.frames, self.parts = 0, 0
        self._broken = False
        self._target, self._keep_partial = target, keep_partial
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1)
        self._waiting: deque[Future] = deque()
        self._file = self._open(fps, first)

    def _open(self, fps: int, first: int) -> "_Stream | _PngFiles | _VideoFile":
        target = self._target
        if target.in_memory is not None:
            return _Stream(target.in_memory.append, lambda: None)
        if target.is_pipe:
            to_stdout = str(target.path) == STDOUT
            pipe = sys.stdout.buffer if to_stdout else self._stack.enter_context(target.path.open("wb"))
            parts = PartEncoder(pipe, fps, recipe=target.recipe)
            return _Stream(parts.write, parts.close)
        target.folder.mkdir(parents=True, exist_ok=True)
        if target.pattern is not None:
            return _PngFiles(target, first, self._keep_partial)
        return (_PlayableVideo if self._keep_partial else _VideoFile)(target, fps)

    def write(self, frames: np.ndarray) -> None:
        """Queue frames, uint8 [F, H, W, 3], as one part of the video. Wait while the queue is full. Raises the error of
        an earlier part."""
        self._waiting.append(self._thread.submit(self._write, frames))
        self.frames += len(frames)
        while len(self._waiting) > MAX_QUEUED_PARTS or self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def _write(self, frames: np.ndarray) -> None:
        if self._broken:
            return
        self._broken = True
        try:
            self._file.write(frames)
        except OSError as error:
            if error.filename is None and not self._target.is_pipe:
                error.filename = str(self._target.path)
            raise
        self._broken, self.parts = False, self.parts + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An interrupt is delayed until a file is complete. For a pipe it may end the wait for the reader.
        whole: AbstractContextManager = nullcontext() if self._target.is_pipe else DelayInterrupts(first=True)
        with whole, self._stack, self._thread:
            try:
                for future in self._waiting:
                    future.exception() if error else future.result()
                if self.frames and (error is None or self._keep_partial):
                    self._file.close()
                    return
            except BaseException:
                self._file.abandon()
                raise
            self._file.abandon()


class _Stream:
    """A video output that passes arrays of frames to the function `write`. The function appends them to a list, or
    encodes them for a pipe."""

    def __init__(self, write: Callable[[np.ndarray], object], close: Callable[[], None]) -> None:
        self.write, self.close = write, close

    def abandon(self) -> None: ...


class _PngFiles:
    """A writer of a video as numbered PNG files, compressed in several threads. `first`: the first file's number.
    `at_once`: if true, `write` gives the files their final names, otherwise `close` does."""

    def __init__(self, target: Target, first: int, at_once: bool) -> None:
        self._target, self._next, self._at_once = target, first, at_once
        self._waiting: list[Path] = []

    def write(self, frames: np.ndarray) -> None:
        files = self._target.files(self._next, len(frames))
        self._next += len(frames)
        from PIL import Image
        from PIL.PngImagePlugin import PngInfo

        texts = PngInfo()
        if self._target.recipe:
            texts.add_text(RECIPE, self._target.recipe)

        def save(file: Path, frame: np.ndarray) -> None:
            Image.fromarray(frame).save(part_of(file), format="PNG", compress_level=4, pnginfo=texts)

        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(save, files, frames))
        except BaseException:
            for file in files:
                part_of(file).unlink(missing_ok=True)
            raise
        self._waiting += files
        if self._at_once:
            self.close()

    def close(self) -> None:
        for file in self._waiting:
            name_whole(file)
        self._waiting = []
        for file in self._target.files_after(self._next) if self._target.overwrite else ():
            file.unlink()

    def abandon(self) -> None:
        for file in self._waiting:
            part_of(file).unlink(missing_ok=True)


class _VideoFile:
    def __init__(self, target: Target, fps: int) -> None:
        self._path, self._part = target.path, part_of(target.path)
        self._video = VideoEncoder(self._part, target.path.suffix, fps, target.recipe)

    def write(self, frames: np.ndarray) -> None:
        self._video.write(frames)

    def close(self) -> None:
        self._video.close()
        name_whole(self._path)

    def abandon(self) -> None:
        self._video.abandon()
        self._part.unlink(missing_ok=True)


class _PlayableVideo(_VideoFile):
    """A video file with a temporary copy that can be played during the run."""

    def __init__(self, target: Target, fps: int) -> None:
        super().__init__(target, fps)
        self._copy = target.playable_copy
        self._file = self._copy.open("wb")
        self._parts = PartEncoder(self._file, fps, preset="ultrafast", recipe=target.recipe)

    def write(self, frames: np.ndarray) -> None:
        self._parts.write(frames)
        super().write(frames)

    def close(self) -> None:
        super().close()
        self._file.close()
        self._copy.unlink()

    def abandon(self) -> None:
        """Delete the incomplete video file. Its playable copy stays on disk, or is deleted too if it has no frames."""
        super().abandon()
        self._file.close()
        if not self._parts.frames:
            self._copy.unlink(missing_ok=True)
