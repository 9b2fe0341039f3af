"""The scheduler that decides when a session makes the next chunk of a walk (a steered video)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from .controls import FRAMES_PER_LATENT
from .shown.frames import Frames

MARGIN = 0.03
"""A chunk's frames should arrive this many seconds before playback needs them."""
RECENT_FRAMES = 32
"""The number of video frames, but at least two chunks, in the history from which the next chunk's latency and the load
are estimated."""
RATE_SECONDS = 4.0
"""The frame rate is measured over this many past seconds."""


class Pace:
    """A scheduler that begins each chunk as late as playback at `fps` permits, or immediately if `fps` is 0.

    frames: the number of delivered frames.
    late: the number of frames that arrived after playback ran out.
    stalls: the number of deliveries with late frames.
    half_rate: whether chunks are made at half the playback rate. Gaps are then intended; `stalls` and `late` stay
    unchanged.
    """

    def __init__(
        self, fps: float, clock: Callable[[], float] = time.monotonic, *, chunk_frames: int = FRAMES_PER_LATENT
    ) -> None:
        self.fps, self._clock = fps, clock
        chunks = max(2, RECENT_FRAMES // chunk_frames)
        self._delays: deque[float] = deque(maxlen=chunks)
        self._work_times: deque[tuple[float, int]] = deque(maxlen=chunks)
        self._deliveries: deque[tuple[float, int]] = deque()
        self._played: float | None = None  # the time when all delivered frames have been played
        self._undecoded = 0
        self.frames = self.late = self.stalls = 0
        self.half_rate = False
        self._chunk_frames = chunk_frames

    def seconds_to_wait(self) -> float:
        """Return the seconds until the next chunk should begin; 0.0 means immediately."""
        if not self.fps or self._played is None:
            return 0.0
        played = self._played + (self._undecoded + self._chunk_frames * self.half_rate) / self.fps
        return max(0.0, played - self._clock() - max(self._delays, default=0.0) - MARGIN)

    def record_undecoded(self, frames: int) -> None:
        """Set the number of video frames with computed latents that are not yet decoded and delivered."""
        self._undecoded = frames

    def record_work(self, seconds: float, frames: int) -> None:
        self._work_times.append((seconds, frames))

    def busy(self) -> float:
        """Return the load, 0 to 1: the share of the time in which chunks are computed."""
        seconds, frames = (
            (sum(column) for column in zip(*self._work_times, strict=True)) if self._work_times else (0.0, 0)
        )
        return min(1.0, seconds / frames * self.rate()) if frames else 0.0

    def track(self, chunk: Iterator[Frames]) -> Iterator[Frames]:
        """Yield the Frames of a chunk one by one, and record their delivery."""
        for frames in chunk:
            if frames.part == 0:
                self.record_delay(frames.seconds)
            self.record_delivery(len(frames.pixels))
            yield frames
        self.record_undecoded(0)

    def record_delay(self, seconds: float) -> None:
        """Record the seconds from a chunk's start to its first frames. The first delay after a pause is ignored."""
        if self._played is not None:
            self._delays.append(seconds)

    def record_delivery(self, frames: int) -> None:
        """Record that `frames` frames were delivered to the viewer now."""
        now, self._undecoded = self._clock(), max(0, self._undecoded - frames)
        if self.fps and self._played is not None and now > self._played and not self.half_rate:
            self.stalls += 1
            self.late += frames
        start = now if self._played is None else max(now, self._played)
        self._played = start + (frames / self.fps if self.fps else 0.0)
        self.frames += frames
        self._deliveries.append((now, frames))
        while now - self._deliveries[0][0] > RATE_SECONDS:
            self._deliveries.popleft()

    def reset(self) -> None:
        """Forget past deliveries, so that a pause does not count as a delay."""
        self._played, self._undecoded = None, 0
        self._deliveries.clear()

    def rate(self) -> float:
        """Return the delivered frames per second over the last RATE_SECONDS, or 0.0 with fewer than two deliveries."""
        if len(self._deliveries) < 2 or self._clock() - self._deliveries[-1][0] > RATE_SECONDS:
            return 0.0
        return sum(frames for _, frames in list(self._deliveries)[1:]) / max(
            self._deliveries[-1][0] - self._deliveries[0][0], 1e-6
        )
