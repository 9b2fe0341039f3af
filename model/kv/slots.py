"""The slots in which a KeyValueCache stores latent frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class TokenRange(NamedTuple):
    """The tokens of consecutive latent frames in a KeyValueCache: their rows in storage (`stored`), and their rows in
    the tensor that attention reads (`seen`)."""

    stored: slice
    seen: slice


class Slots(NamedTuple):
    """The slots of a window's latent frames: the first slots hold the video's first frames, the others form a ring.

    window: the number of latent frames to which a chunk attends.
    sink: the number of first frames that always stay.
    """

    window: int
    sink: int
    chunk: int
    frame_tokens: int

    def is_seen(self, frame: int, first: int) -> bool:
        """Whether the chunk that begins with frame number `first` attends to the earlier frame number `frame`."""
        return frame < self.sink or frame >= first + self.chunk - (self.window - self.sink)

    def window_slot(self, frame: int) -> int:
        """Return a frame's slot in the tensor that attention reads, without a check that the frame is still there."""
        return self._slot(frame, self.window)

    def ranges(self, frames: Iterable[int]) -> list[TokenRange]:
        """Return the token ranges of latent frames, given by number. Frames that are adjacent both in storage and in
        the tensor that attention reads are merged into one range."""
        runs: list[tuple[int, int, int]] = []
        for frame in frames:
            stored = self._slot(frame, self.window - self.chunk)  # storage leaves out the current chunk
            seen = self.window_slot(frame)
            last = runs[-1] if runs else (-1, -1, 0)
            if (stored, seen) == (last[0] + last[2], last[1] + last[2]):
                runs[-1] = *last[:2], last[2] + 1
            else:
                runs.append((stored, seen, 1))
        return [TokenRange(self._tokens(stored, count), self._tokens(seen, count)) for stored, seen, count in runs]

    def _slot(self, frame: int, slots: int) -> int:
        # the order of slots does not matter: keys are stored after RoPE, and attention has no mask
        return frame if frame < self.sink else self.sink + (frame - self.sink) % (slots - self.sink)

    def _tokens(self, slot: int, count: int) -> slice:
        return slice(slot * self.frame_tokens, (slot + count) * self.frame_tokens)
