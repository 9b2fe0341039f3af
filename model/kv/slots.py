"""The slots in which a KeyValueCache stores latent frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class TokenRange(NamedTuple):
    """A range of consecutive tokens of latent frames: their rows `stored` in storage, and their rows `seen` in the
    tensor that attention reads."""

    stored: slice
    seen: slice


class Slots(NamedTuple):
    """The slots of the `window` latent frames to which a chunk of `chunk` frames attends. The first `sink` slots hold
    the video's first frames. The others form a ring, in which a new frame overwrites the oldest.

    Attention reads `window` slots. A storage in host memory or in int8 has only `window - chunk` slots, because a
    chunk attends to at most this many earlier frames. `frame_tokens` is the number of tokens of a frame.
    """

    window: int
    sink: int
    chunk: int
    frame_tokens: int

    def is_seen(self, frame: int, first: int) -> bool:
        """Return whether the chunk that begins with frame number `first` attends to the earlier frame number `frame`.
        True for the video's first `sink` frames, and for the latest frames that fit into the rest of the window
        together with the chunk."""
        return frame < self.sink or frame >= first + self.chunk - (self.window - self.sink)

    def seen(self, frame: int) -> int:
        """Return the slot of frame number `frame` in the tensor that attention reads. The slot follows from the number
        alone: the function does not check whether the frame is still stored there."""
        return self._slot(frame, self.window)

    def ranges(self, frames: Iterable[int]) -> list[TokenRange]:
        """Return the token ranges of `frames`, for storage without slots for the current chunk. Frames that are
        adjacent both in storage and in attention's tensor share a range."""
        runs: list[tuple[int, int, int]] = []
        for frame in frames:
            stored, seen = self._slot(frame, self.window - self.chunk), self.seen(frame)
            last = runs[-1] if runs else (-1, -1, 0)
            if (stored, seen) == (last[0] + last[2], last[1] + last[2]):
                runs[-1] = *last[:2], last[2] + 1
            else:
                runs.append((stored, seen, 1))
        return [TokenRange(self._tokens(stored, count), self._tokens(seen, count)) for stored, seen, count in runs]

    def _slot(self, frame: int, slots: int) -> int:
        return frame if frame < self.sink else self.sink + (frame - self.sink) % (slots - self.sink)

    def _tokens(self, slot: int, count: int) -> slice:
        return slice(slot * self.frame_tokens, (slot + count) * self.frame_tokens)
