"""The video file of a walk, which is written during the walk and cut when the user goes back."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np

from ...errors import require
from ...live import Frames
from ..files.encoding import PartEncoder

log = logging.getLogger(__name__)
PART = 16
"""The number of frames in a part of the video. Each part begins with a key frame."""
PRESET = "veryfast"
"""The libx264 preset of walks. With `ultrafast`, which is faster, `lingbot-world camera measure` misjudges walks."""
MAX_QUEUED_BATCHES = 24
"""The maximum number of batches of frames that wait for encoding. Further batches are dropped."""


class WalkRecording:
    """A writer of a walk's video file, which can be played even while the walk runs.

    left_out: the number of dropped frames. The frame after a gap is repeated to fill it.
    failure: the reason if writing has failed, else empty.
    """

    def __init__(
        self, path: Path, fps: float, first: int = 0, tell: Callable[[str], None] = lambda _reason: None
    ) -> None:
        """Start the thread that writes the video. `first`: the walk's frame number at which the recording begins.
        `tell(message)` reports the first dropped frame and a failure."""
        self.path, self.failure, self.left_out = path, "", 0
        self._fps, self._first, self._tell = max(1, round(fps)), first, tell
        self._ends = first  # the number of the walk's next frame
        self._queue: Queue[Frames | int | None] = Queue()
        self._thread = Thread(target=self._write, name="lingbot-recording", daemon=True)
        self._thread.start()

    def add(self, frames: Frames, *, wait: bool = False) -> None:
        """Queue frames for encoding. If the queue is full, drop the frames, or wait for room if `wait` is set."""
        while wait and self._queue.qsize() >= MAX_QUEUED_BATCHES and not self.failure:
            time.sleep(0.01)
        self._ends = frames.first + len(frames.pixels)
        if self._queue.qsize() < MAX_QUEUED_BATCHES:
            self._queue.put(replace(frames, pixels=frames.pixels.copy()))  # the tensor's memory is reused
            return
        self.left_out += len(frames.pixels)
        if self.left_out == len(frames.pixels):
            self._say(f"frames come faster than the video {self.path} is written: some are replaced by later ones")

    def cut(self, number: int) -> None:
        """Remove frame `number` of the walk and all later frames from the video."""
        self._ends = number
        self._queue.put(number)

    def close(self) -> None:
        """Write all queued frames, and end the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _say(self, reason: str) -> None:
        log.warning("%s", reason)
        self._tell(reason)

    def _write(self) -> None:
        item: Frames | int | None = self._ends
        try:
            film = _SegmentedVideo(self.path, self._fps)
            while (item := self._queue.get()) is not None:
                if isinstance(item, Frames):
                    film.add(item.pixels, at=item.first - self._first)
                else:
                    film.cut(item - self._first)
            film.close(self._ends - self._first)
        except Exception as error:  # a full disk, or a missing encoder
            self.failure = f"the video {self.path} ends here: {getattr(error, 'strerror', None) or error}"
            self._say(self.failure)
            while item is not None:  # the walk goes on
                item = self._queue.get()


class _SegmentedVideo:
    """A video file that is encoded in parts of PART frames. The method `cut` shortens the file to any number of frames,
    also within a part."""

    def __init__(self, path: Path, fps: int) -> None:
        self._path, self._fps = path, fps
        self._waiting: list[np.ndarray] = []
        self._last: np.ndarray | None = None
        self._file = path.open("wb")
        self._parts = _Parts(self._file, fps, PRESET)

    @property
    def _frames(self) -> int:
        return self._parts.frames + len(self._waiting)

    def add(self, pixels: np.ndarray, at: int) -> None:
        """Append frames, uint8 [n, H, W, 3]. The first one becomes the file's frame number `at`. If the file is
        shorter, copies of this frame fill the gap."""
        self._take([pixels[0]] * (at - self._frames) + list(pixels))
        self._last = pixels[-1]

    def cut(self, frames: int) -> None:
        """Cut the file after its first `frames` frames. Complete parts are copied without encoding."""
        written = self._parts.frames
        del self._waiting[max(0, frames - written) :]
        if frames >= written:
            return
        self._close_file()
        part = self._path.with_name(f"{self._path.name}.part")
        with require("av", '"lingbot-world[live]"').open(str(self._path)) as video, part.open("wb") as file:
            self._parts = _Parts(file, self._fps, PRESET)
            self._parts.copy(video, frames // PART * PART)
            self._waiting = list(islice(_decoded(video), frames % PART))
        os.replace(part, self._path)
        self._file = self._path.open("ab")
        self._parts.pipe = self._file

    def close(self, frames: int) -> None:
        if self._last is not None:
            self._take([self._last] * (frames - self._frames))
        if self._waiting:
            self._parts.write(np.stack(self._waiting))
        self._close_file()

    def _take(self, frames: list[np.ndarray]) -> None:
        self._waiting += frames
        while len(self._waiting) >= PART:
            self._parts.write(np.stack(self._waiting[:PART]))
            del self._waiting[:PART]

    def _close_file(self) -> None:
        self._parts.close()
        self._file.close()


class _Parts(PartEncoder):
    """A writer of a video file in parts of PART frames, which can also copy parts of another file."""

    def copy(self, video: Any, frames: int) -> None:
        """Copy the first `frames` frames (a multiple of PART) of a video that another _Parts object has written,
        without encoding. `video`: the open PyAV container."""
        (stream,) = video.streams
        as_encoded = require("av", '"lingbot-world[live]"').bitstream.BitStreamFilterContext("h264_mp4toannexb", stream)
        for given in islice(video.demux(stream), frames):
            for packet in as_encoded.filter(given):
                if not self._stream.is_open:
                    self._stream.height, self._stream.width = stream.height, stream.width
                packet.pts, packet.dts = packet.pts - stream.start_time, packet.dts - stream.start_time
                packet.stream = self._stream
                self._container.mux(packet)
                self._send()
        self.frames = frames


def _decoded(video: Any) -> Iterator[np.ndarray]:
    for frame in video.decode(video=0):
        yield frame.to_ndarray(format="rgb24")
