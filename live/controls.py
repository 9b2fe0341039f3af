"""The user's inputs for a walk (a steered video): keys, mouse and gamepad, sent by any thread at any time.

The generating thread reads the inputs of a chunk as late as possible. A key that is held then applies to all video
frames of the chunk, so that its effect comes soon. A tap, a key pressed and released since the last chunk, applies only
to the frames at the time of the tap.
"""

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
"""The keyboard keys that move the camera: w, a, s, d walk forward, left, back, right; i, j, k, l look up, left, down,
right."""
RUN, RUNNING = "shift", 2.0
"""RUN is the keyboard key that the user holds to run. RUNNING is the factor by which it raises the walking speed."""
FRAMES_PER_LATENT = 4
"""The number of video frames that a latent frame decodes to. The first latent frame of a video is an exception: it
decodes to one."""
MOST_TAPS, MOST_ROWS = 256, 4096
"""At most MOST_TAPS taps (short key presses) wait for the next chunk; older ones are dropped. The same limit applies to
the records of inputs. A list of timed keys (see `Controls.script`) may cover at most MOST_ROWS latent frames."""
FURTHEST_LOOK = 720.0
"""Mouse movements add up until the camera applies them. Their sum is limited to this many degrees, in yaw and in
pitch."""
_AXES = {"w": (0, 1), "s": (0, -1), "d": (1, 1), "a": (1, -1), "l": (2, 1), "j": (2, -1), "i": (3, 1), "k": (3, -1)}


class _Pending(NamedTuple):
    """A copy of the inputs as they were before the last `Controls.take`. `Controls.restore` restores them from this
    copy."""

    down: dict[str, float]
    taps: list[tuple[str, float, float]]
    look: tuple[float, float]
    script: deque[frozenset[str]]
    rows: list[frozenset[str]]
    taken: float
    arrived: float | None
    inputs: list[Input]


class Controls:
    """The state of keyboard keys, mouse and gamepad of one walk (a steered video).

    Many methods have an argument `event`: an optional number by which the sender recognizes the input. The first video
    frames that include the input carry this number. Methods raise InputError for an unknown key, a number that is not
    finite, and invalid timed keys.

    last_input: the time, in seconds of `clock`, of the last input. A chunk that is made with a held input counts as an
        input.
    switches: a count that rises in three cases: the held keys change, timed keys are set, or the sticks leave or reach
        their rest.
    changed: a function that is called after each input, in the thread that sends the input.
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
        self.last_input = self._last_take  # the time of the last input, or of the last read with a held input
        self.switches = 0  # counts the starts and ends of keys, sticks and scripts
        self.changed: Callable[[], None] = lambda: None  # called after each input, in the thread of the input
        self._last_arrival: float | None = None  # the time of the last input that no frame includes yet
        self._inputs: deque[Input] = deque(maxlen=MOST_TAPS)
        self._pending: _Pending | None = None

    def press(self, key: str, event: int | None = None) -> None:
        """Press a keyboard key, in addition to those that are already held. The first frames that include this input
        carry its optional number `event`."""
        self.hold({*self._down, key}, event)

    def release(self, key: str, event: int | None = None) -> None:
        """Release a keyboard key. The first frames that include this input carry its optional number `event`."""
        self.hold({*self._down} - {key}, event)

    def hold(self, keys: Iterable[str], event: int | None = None) -> None:
        """Hold exactly these keys from now on, and end running timed keys (see `script`). The first frames that include
        this input carry its optional number `event`."""
        wanted = _check_keys(keys)
        with self._receiving("hold", event) as now:
            self.switches += wanted != self._down.keys()
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
        """Add a mouse movement in degrees: `yaw` to the right, `pitch` upwards. The first frames that include this
        input carry its optional number `event`."""
        turned = _clamp("look", (yaw, pitch), FURTHEST_LOOK)
        with self._receiving("look", event):
            self._look = [
                max(-FURTHEST_LOOK, min(FURTHEST_LOOK, was + more))
                for was, more in zip(self._look, turned, strict=True)
            ]

    def stick(self, forward: float, right: float, yaw: float, pitch: float, event: int | None = None) -> None:
        """Set the positions of the gamepad's sticks, -1 to 1 each, until the next call. One stick walks `forward` and
        `right`; the other turns by `yaw` to the right and `pitch` upwards. The first frames that include this input
        carry its optional number `event`."""
        forward, right, yaw, pitch = _clamp("stick", (forward, right, yaw, pitch), 1.0)
        with self._receiving("stick", event):
            stick = forward, right, yaw, pitch
            self.switches += any(self._stick) != any(stick)
            self._stick = stick

    def script(self, rows: Sequence[Iterable[str]], event: int | None = None) -> None:
        """Release all keys, and set timed keys: the keys that count as held in each of the next latent frames. `rows`
        has one collection of keys per latent frame. After the last row no key is held. The first frames that include
        this input carry its optional number `event`."""
        if not isinstance(rows, Sequence):
            raise InputError(f"the script is {rows!r:.40}; expected a list with the keys of each latent frame")
        if len(rows) > MOST_ROWS:
            raise InputError(f"a script of {len(rows)} latent frames; expected {MOST_ROWS} at most")
        checked = [_check_keys(row) for row in rows]
        with self._receiving("script", event):
            self.switches += 1
            self._down.clear()
            self._taps.clear()
            self._script = deque(checked)

    def record_activity(self) -> None:
        """Record that the user is active, so that the session does not count as idle, without moving the camera."""
        with self._lock:
            self.last_input = self._clock()

    def release_all(self) -> None:
        """Release all keys and sticks, and drop taps, mouse movements and timed keys, because the user has left."""
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
        """Return the user's inputs for the next `frames` video frames, and consume them:

        - Mouse movements are removed. So are the timed keys (see `script`) of these frames.
        - Taps are removed, unless `frames` is 0.
        - Held keys and the positions of sticks stay.
        """
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
        """Undo the last `take`, because its chunk was discarded and is made again. The next `take` then returns the
        same inputs, together with inputs that arrived later."""
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
        """Hold the lock while an input of the given `kind` is stored in this context, and yield the input's time in
        seconds. After the context, call `self.changed()`."""
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
    """Return the index of the chunk's video frame during which an input arrived at the time `at`. The chunk's `frames`
    video frames stand for equal parts of the time from `since` to `now`, in seconds."""
    return min(frames - 1, int(frames * (at - since) / max(now - since, 1e-9)))


class ControlsMixin:
    """A base class of sessions with methods for the user's inputs, which pass the inputs to the attribute `controls`.
    The argument `event` is an optional number that the sender gives to an input (see `Controls`)."""

    controls: Controls

    def press(self, key: str, event: int | None = None) -> None:
        """Press a key: w, a, s, d, i, j, k, l or shift. The first frames with this input carry its number `event`."""
        self.controls.press(key, event)

    def release(self, key: str, event: int | None = None) -> None:
        """Release a keyboard key. The first frames that include this input carry its optional number `event`."""
        self.controls.release(key, event)

    def hold(self, keys: Iterable[str], event: int | None = None) -> None:
        """Hold exactly these keys from now on. The first frames with this input carry its optional number `event`."""
        self.controls.hold(keys, event)

    def look(self, yaw: float, pitch: float, event: int | None = None) -> None:
        """Turn the camera by degrees: `yaw` right, `pitch` up. The first frames that include this input carry its
        optional number `event`."""
        self.controls.look(yaw, pitch, event)

    def stick(self, forward: float, right: float, yaw: float, pitch: float, event: int | None = None) -> None:
        """Set a gamepad's sticks, -1 to 1 each. The first frames with this input carry its optional number `event`."""
        self.controls.stick(forward, right, yaw, pitch, event)

    def script(self, rows: Sequence[Iterable[str]], event: int | None = None) -> None:
        """Set the keys that count as held in the next latent frames: `rows` has one collection of keys per latent
        frame. The first frames that include this input carry its optional number `event`."""
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
