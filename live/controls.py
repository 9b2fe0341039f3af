"""The user's inputs for a walk (a steered video): keys, mouse and gamepad, sent by any thread at any time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import numpy as np

from ..camera.moves.keys import LOOK_KEYS, MOVE_KEYS
from ..errors import InputError
from .folder.inputs import FrameInputs, Input

KEYS = MOVE_KEYS + LOOK_KEYS
"""The keyboard keys that move the camera: w, a, s, d to walk, and i, j, k, l to look."""
RUN, RUNNING = "shift", 2.0
"""The keyboard key to run, and the factor by which it speeds up walking."""
FRAMES_PER_LATENT = 4
"""The number of video frames that a latent frame decodes to, except a video's first, which decodes to one."""
MOST_TAPS, MOST_ROWS = 256, 4096
"""MOST_TAPS is the maximum number of taps (short key presses) that wait for the next chunk, MOST_ROWS the maximum
number of latent frames in a script of timed keys."""
FURTHEST_LOOK = 720.0
"""The maximum mouse rotation, in degrees, that accumulates for the next chunk."""
_AXES = {"w": (0, 1), "s": (0, -1), "d": (1, 1), "a": (1, -1), "l": (2, 1), "j": (2, -1), "i": (3, 1), "k": (3, -1)}


class _Pending(NamedTuple):
    down: dict[str, float]
    taps: list[tuple[str, float, float]]
    look: tuple[float, float]
    script: deque[frozenset[str]]
    rows: list[frozenset[str]]
    taken: float
    arrived: float | None
    inputs: list[Input]


class Controls:
    """The state of keyboard keys, mouse and gamepad of one walk (a steered video). Methods raise InputError for an
    invalid input.

    last_input: the time, by `clock()`, of the user's last activity; held keys count as activity.
    key_changes: counts changes of held keys, new scripts, and starts and ends of stick movements.
    changed: called after each input, in the thread that sends the input.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._down: dict[str, float] = {}  # held keys, and the time of each press
        self._taps: deque[tuple[str, float, float]] = deque(maxlen=MOST_TAPS)
        self._stick = (0.0, 0.0, 0.0, 0.0)
        self._look = [0.0, 0.0]
        self._script: deque[frozenset[str]] = deque()
        self._last_number: int | None = None
        self._last_take = clock()
        self.last_input = self._last_take
        self.key_changes = 0
        self.changed: Callable[[], None] = lambda: None
        self._last_arrival: float | None = None  # the time of the last input that no frame includes yet
        self._inputs: deque[Input] = deque(maxlen=MOST_TAPS)
        self._pending: _Pending | None = None

    def press(self, key: str, event: int | None = None) -> None:
        """Press a keyboard key, in addition to the held ones. `event`: the sender's id of this input, returned with the
        first frames that it affects."""
        self.hold({*self._down, key}, event)

    def release(self, key: str, event: int | None = None) -> None:
        self.hold({*self._down} - {key}, event)

    def hold(self, keys: Iterable[str], event: int | None = None) -> None:
        """Hold exactly these keys, and end a running `script`. `event`: the sender's id of this input, returned with
        the first frames that it affects."""
        wanted = _check_keys(keys)
        with self._receiving("hold", event) as now:
            self.key_changes += wanted != self._down.keys()
            self._script = deque()
            for key in self._down.keys() - wanted:
                since = self._down.pop(key)
                if since > self._last_take:
                    self._taps.append((key, since, now))
            for key in wanted - self._down.keys():
                self._down[key] = now

    @property
    def down(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._down)

    def look(self, yaw: float, pitch: float, event: int | None = None) -> None:
        """Add a mouse movement in degrees, right and up. `event`: the sender's id of this input, returned with the
        first frames that it affects."""
        turned = _clamp("look", (yaw, pitch), FURTHEST_LOOK)
        with self._receiving("look", event):
            self._look = [
                max(-FURTHEST_LOOK, min(FURTHEST_LOOK, was + more))
                for was, more in zip(self._look, turned, strict=True)
            ]

    def stick(self, forward: float, right: float, yaw: float, pitch: float, event: int | None = None) -> None:
        """Set a gamepad's sticks, -1 to 1 each. `event`: the sender's id of this input, returned with the first frames
        that it affects."""
        forward, right, yaw, pitch = _clamp("stick", (forward, right, yaw, pitch), 1.0)
        with self._receiving("stick", event):
            stick = forward, right, yaw, pitch
            self.key_changes += any(self._stick) != any(stick)
            self._stick = stick

    def script(self, rows: Sequence[Iterable[str]], event: int | None = None) -> None:
        """Release all keys, then hold keys by a script: `rows[0]` in the next latent frame, `rows[1]` in the one after,
        and so on. `event`: the sender's id of this input, returned with the first frames that it affects."""
        if not isinstance(rows, Sequence):
            raise InputError(f"the script is {rows!r:.40}; expected a list with the keys of each latent frame")
        if len(rows) > MOST_ROWS:
            raise InputError(f"a script of {len(rows)} latent frames; expected {MOST_ROWS} at most")
        checked = [_check_keys(row) for row in rows]
        with self._receiving("script", event):
            self.key_changes += 1
            self._down.clear()
            self._taps.clear()
            self._script = deque(checked)

    def record_activity(self) -> None:
        """Record that the user is active, without moving the camera."""
        with self._lock:
            self.last_input = self._clock()

    def release_all(self) -> None:
        """Release all keys and sticks, and drop taps, mouse movements and timed keys."""
        with self._lock:
            self._down.clear()
            self._taps.clear()
            self._script = deque()
            self._stick, self._look = (0.0, 0.0, 0.0, 0.0), [0.0, 0.0]

    @property
    def has_input(self) -> bool:
        """Whether an input would move the camera in the next frames; a held shift alone would not."""
        with self._lock:
            held = self._down.keys() - {RUN} or self._script or any(self._stick)
            return bool(held or self._taps or any(self._look))

    @property
    def has_changed(self) -> bool:
        """Whether inputs have arrived since the last chunk, or timed keys (see `script`) are running."""
        with self._lock:
            return self._last_arrival is not None or bool(self._script)

    def take(self, frames: int) -> FrameInputs:
        """Return the inputs for the next `frames` video frames. Afterwards forget the returned mouse rotation and, if
        `frames` is not 0, the returned taps (short key presses). Held keys and sticks stay."""
        with self._lock:
            now, since = self._clock(), self._last_take
            look, arrived = (self._look[0], self._look[1]), self._last_arrival
            inputs = [*self._inputs]
            before = {**self._down}, [*self._taps], look, self._script, [*self._script]
            self._pending = _Pending(*before, since, arrived, inputs)
            if self._down or self._script or any(self._stick):
                self.last_input = now
            axes = np.zeros((frames, 4))
            for number, row in enumerate(self._rows(frames, since, now)):
                for axis, sign in (_AXES[key] for key in row if key != RUN):
                    axes[number, axis] += sign
                axes[number] = np.clip(axes[number] + self._stick, -1, 1)
                axes[number, :2] *= RUNNING if RUN in row else 1
            self._look, self._last_arrival = [0.0, 0.0], None
            waited = None if arrived is None else now - arrived
            if not frames:  # a walk's first chunk may have no frames; then its taps are kept for the second
                return FrameInputs(axes, look, self._last_number, waited)
            of_taps = {at for _, *times in self._taps for at in times}
            rows = [_row(each.arrived, frames, since, now) if each.arrived in of_taps else 0 for each in inputs]
            self._taps.clear()
            self._inputs.clear()
            self._last_take = now
            placed = (each._replace(row=row) for each, row in zip(inputs, rows, strict=True))
            return FrameInputs(axes, look, self._last_number, waited, tuple(placed))

    def restore(self) -> None:
        """Undo the last `take`. The next `take` returns the same inputs, together with inputs that arrived later."""
        with self._lock:
            before, self._pending = self._pending, None
            if before is None:
                return
            released = {key: since for key, since in before.down.items() if key not in self._down}
            taps = [(key, since, self._clock()) for key, since in released.items() if since > before.taken]
            since_then = [tap for tap in self._taps if tap not in before.taps]
            self._taps = deque([*before.taps, *taps, *since_then], maxlen=MOST_TAPS)
            self._look = [was + more for was, more in zip(before.look, self._look, strict=True)]
            new = (each for each in self._inputs if each not in before.inputs)
            self._inputs = deque([*before.inputs, *new], maxlen=MOST_TAPS)
            if self._script is before.script:  # no other script began, and no key ended it
                self._script = deque(before.rows)
            self._last_take = before.taken
            self._last_arrival = self._last_arrival if before.arrived is None else before.arrived

    @contextmanager
    def _receiving(self, kind: str, event: int | None) -> Iterator[float]:
        with self._lock:
            self._last_number = self._last_number if event is None else event
            self.last_input = self._last_arrival = self._clock()
            self._inputs.append(Input(kind, event, self.last_input))
            yield self.last_input
        self.changed()

    def _rows(self, frames: int, since: float, now: float) -> list[set[str]]:
        if self._script:
            count = min(len(self._script), -(-frames // FRAMES_PER_LATENT))
            taken = [set(self._script.popleft()) for _ in range(count)]
            taken += [set()] * (-(-frames // FRAMES_PER_LATENT) - count)
            return [row for row in taken for _ in range(FRAMES_PER_LATENT)][-frames:] if frames else []
        rows = [set(self._down) for _ in range(frames)]
        for key, down, up in self._taps:
            first, last = (_row(at, frames, since, now) for at in (down, up))
            for row in rows[first : last + 1]:
                row.add(key)
        return rows


def _row(at: float, frames: int, since: float, now: float) -> int:
    """Return the index of the video frame to which an input at the time `at` belongs. The `frames` frames are spread
    evenly from `since` to `now`."""
    return min(frames - 1, int(frames * (at - since) / max(now - since, 1e-9)))


class ControlsMixin:
    """A base class of sessions that passes the user's inputs to the attribute `controls`."""

    controls: Controls

    def press(self, key: str, event: int | None = None) -> None:
        """Press a key: w, a, s, d, i, j, k, l or shift. `event`: the sender's id of this input, returned with the first
        frames that it affects."""
        self.controls.press(key, event)

    def release(self, key: str, event: int | None = None) -> None:
        """Release a keyboard key. `event`: the sender's id of this input, returned with the first frames that it
        affects."""
        self.controls.release(key, event)

    def hold(self, keys: Iterable[str], event: int | None = None) -> None:
        """Hold exactly these keys from now on. `event`: the sender's id of this input, returned with the first frames
        that it affects."""
        self.controls.hold(keys, event)

    def look(self, yaw: float, pitch: float, event: int | None = None) -> None:
        """Turn the camera by degrees: `yaw` right, `pitch` up. `event`: the sender's id of this input, returned with
        the first frames that it affects."""
        self.controls.look(yaw, pitch, event)

    def stick(self, forward: float, right: float, yaw: float, pitch: float, event: int | None = None) -> None:
        """Set a gamepad's sticks, -1 to 1 each. `event`: the sender's id of this input, returned with the first frames
        that it affects."""
        self.controls.stick(forward, right, yaw, pitch, event)

    def script(self, rows: Sequence[Iterable[str]], event: int | None = None) -> None:
        """Release all keys, then hold keys by a script: `rows[0]` in the next latent frame, `rows[1]` in the one after,
        and so on. `event`: the sender's id of this input, returned with the first frames that it affects."""
        self.controls.script(rows, event)


def _check_keys(keys: Iterable[str]) -> frozenset[str]:
    if not isinstance(keys, Iterable):
        raise InputError(f"the keys are {keys!r:.40}; expected a list of {' '.join(KEYS)} {RUN}")
    held = list(keys)
    unknown = [key for key in held if not isinstance(key, str) or key not in (*_AXES, RUN)]
    if unknown:
        raise InputError(f"no such key: {str(unknown[0])[:20]!r}; expected some of {' '.join(KEYS)} {RUN}")
    return frozenset(held)


def _clamp(name: str, values: Sequence[float], most: float) -> tuple[float, ...]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"`{name}`: expected numbers, found {str(values)[:40]}") from error
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"`{name}`: expected finite numbers")
    return tuple(max(-most, min(most, number)) for number in numbers)
