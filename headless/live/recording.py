"""The video of a walk, written while it is walked."""

from __future__ import annotations

from pathlib import Path
from queue import Empty, Full, Queue
from threading import Thread

import numpy as np

from ...live import Frames
from ..files.encoding import VideoParts

PART = 16
"""Frames that are written at once: each part begins with a key frame and can be played when it is there."""
PRESET = "veryfast"
"""Of libx264. Of six walks whose frames follow their path `camera measure` found two that did not in videos by its
ultrafast one. That is 2 dB nearer to the frames (48.4 dB); why it happens is not known. This one takes 4 ms in place
of 1 for a frame of 464x832 on one core, and makes 0.43 of the bytes."""
MOST_WAITING = 24
"""Hand-outs that may wait to be written; more are left out, and the walk waits for none."""


class Recording:
    """A file that can be played at any time, even if the process is killed. A disk that is full ends it, and nothing
    else; `failure` says so."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path, self.failure, self.left_out = path, "", 0
        self._fps = max(1, round(fps))
        self._queue: Queue[np.ndarray | None] = Queue(MOST_WAITING)
        self._thread = Thread(target=self._write, name="lingbot-recording", daemon=True)
        self._thread.start()

    def add(self, frames: Frames) -> None:
        try:
            self._queue.put_nowait(frames.pixels)
        except Full:
            self.left_out += len(frames.pixels)

    def close(self) -> None:
        """Writes what waits."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _write(self) -> None:
        try:
            with self.path.open("wb") as file:
                parts, frames, ended = VideoParts(file, self._fps, PRESET), list[np.ndarray](), False
                while not ended:
                    pixels = self._queue.get()
                    ended = pixels is None
                    frames += [] if pixels is None else list(pixels)
                    if len(frames) >= PART or (ended and frames):
                        parts.write(np.stack(frames))
                        frames = []
                parts.close()
        except Exception as error:  # a full disk, or an encoder that is not there
            self.failure = f"the video {self.path} ends here: {getattr(error, 'strerror', None) or error}"
            self._drain()

    def _drain(self) -> None:
        while True:
            try:
                if self._queue.get(timeout=1) is None:
                    return
            except Empty:
                continue
