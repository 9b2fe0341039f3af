"""When the next chunk is begun: just before the frames that are on their way have been played."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from .controls import FRAMES_OF_ONE
from .walk import Frames

SPARE = 0.03
"""Seconds by which a chunk's first frames may come early: what a page's clock, and Python, are off."""
RECENT = 32
"""Frames: the slowest answer of the chunks that make so many, two at least, tells how long the next one may take."""
SPAN = 4.0
"""Seconds over which frames a second are counted."""


class Pace:
    """Frames are played at `fps`, the first when it is handed out. A machine that is faster waits, so that no key
    stands behind frames that are made; a slower one never waits, and its frames are late. `fps` 0: it never waits.

    A chunk has so many frames, `of_chunk`. How long the first one takes, of a walk or after a rest, says nothing of
    those to come: kernels are compiled and recorded then."""

    def __init__(
        self, fps: float, clock: Callable[[], float] = time.monotonic, *, of_chunk: int = FRAMES_OF_ONE
    ) -> None:
        self.fps, self._clock = fps, clock
        chunks = max(2, RECENT // of_chunk)
        self._answers: deque[float] = deque(maxlen=chunks)
        self._worked: deque[tuple[float, int]] = deque(maxlen=chunks)
        self._handed: deque[tuple[float, int]] = deque()
        self._played: float | None = None  # when all that was handed out has been played
        self._on_the_way = 0
        self.frames = self.late = self.stalls = 0
        self.leisurely = False  # chunks are begun half as often as their frames are played
        self._of_chunk = of_chunk

    def wait(self) -> float:
        """Seconds until the next chunk is to begin."""
        if not self.fps or self._played is None:
            return 0.0
        played = self._played + (self._on_the_way + self._of_chunk * self.leisurely) / self.fps
        return max(0.0, played - self._clock() - max(self._answers, default=0.0) - SPARE)

    def on_the_way(self, frames: int) -> None:
        """So many frames are made, and will be handed out when they are decoded."""
        self._on_the_way = frames

    def worked(self, seconds: float, frames: int) -> None:
        """A chunk of so many frames took so long."""
        self._worked.append((seconds, frames))

    def busy(self) -> float:
        """The share of the time in which chunks are made, at the rate of now."""
        seconds, frames = (sum(column) for column in zip(*self._worked, strict=True)) if self._worked else (0.0, 0)
        return min(1.0, seconds / frames * self.rate()) if frames else 0.0

    def counted(self, chunk: Iterator[Frames]) -> Iterator[Frames]:
        """A chunk's frames, as they are handed out."""
        for frames in chunk:
            if frames.part == 0:
                self.answered(frames.seconds)
            self.handed(len(frames.pixels))
            yield frames
        self.on_the_way(0)

    def answered(self, seconds: float) -> None:
        """A chunk's first frames came so long after it was begun. Told before they are `handed`."""
        if self._played is not None:
            self._answers.append(seconds)

    def handed(self, frames: int) -> None:
        """So many frames were handed out."""
        now, self._on_the_way = self._clock(), max(0, self._on_the_way - frames)
        if self.fps and self._played is not None and now > self._played and not self.leisurely:
            self.stalls += 1
            self.late += frames
        start = now if self._played is None else max(now, self._played)
        self._played = start + (frames / self.fps if self.fps else 0.0)
        self.frames += frames
        self._handed.append((now, frames))
        while now - self._handed[0][0] > SPAN:
            self._handed.popleft()

    def rest(self) -> None:
        """After a pause nothing is late."""
        self._played, self._on_the_way = None, 0
        self._handed.clear()

    def rate(self) -> float:
        """Frames a second that were handed out lately."""
        if len(self._handed) < 2 or self._clock() - self._handed[-1][0] > SPAN:
            return 0.0
        return sum(frames for _, frames in list(self._handed)[1:]) / max(self._handed[-1][0] - self._handed[0][0], 1e-6)
