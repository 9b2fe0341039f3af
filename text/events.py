"""The events of a world, such as rain: sentences that extend the prompt while they are active."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from ..errors import InputError
from ..fields import check_text, text_of
from ..typed import check_types

Part = TypeVar("Part")
MOST_EVENTS = 64
KEYS = "123456789"
LATEST = 1e9
"""The maximum `start` and `end` of an event, in seconds."""
FIELDS = ("name", "text", "key", "start", "end")


@dataclass(frozen=True)
class WorldEvent:
    """A sentence that is appended to the prompt while the event is active.

    key: the keyboard key that switches the event, "1" to "9", or None.
    start, end: the seconds of the video at which it starts and ends, or None.
    """

    name: str
    text: str
    key: str | None = None
    start: float | None = None
    end: float | None = None

    def is_due(self, seconds: float) -> bool:
        """Return whether `start` <= `seconds` < `end`, without a limit if `end` is None. False without a `start`."""
        return self.start is not None and self.start <= seconds < (math.inf if self.end is None else self.end)


def read_events(source: str | Path | Mapping[str, str] | Iterable[Any] | None) -> tuple[WorldEvent, ...]:
    """Return the events in a JSON file, a mapping from names to sentences, or a list. List items are WorldEvents or
    objects with at least `text`. None means no events. Raise InputError for invalid or contradictory events."""
    where = str(source) if isinstance(source, (str, Path)) else "`events`"
    if isinstance(source, (str, Path)):
        source = _parse(str(source), text_of(Path(source)))
    if isinstance(source, Mapping) and not all(isinstance(text, str) for text in source.values()):
        raise InputError(f"{where}: found {source!r:.80}; expected a list of events, or sentences by name")
    if isinstance(source, Mapping):
        source = [{"name": name, "text": text} for name, text in source.items()]
    if source is not None and (isinstance(source, (str, bytes)) or not isinstance(source, Iterable)):
        raise InputError(f"{where}: found {source!r:.40}; expected a list of events")
    events = tuple(_event(where, number, row) for number, row in enumerate(source or ()))
    if len(events) > MOST_EVENTS:
        raise InputError(f"{where}: {len(events)} events; expected {MOST_EVENTS} at most")
    for field in ("name", "key", "text"):
        values = [getattr(event, field) for event in events if getattr(event, field) is not None]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise InputError(f"{where}: two events have the {field} {twice!r:.60}; expected another {field} for each")
    keys = {event.key: event.name for event in events if event.key is not None}
    mistaken = next((event.name for event in events if keys.get(event.name, event.name) != event.name), None)
    if mistaken is not None:
        raise InputError(f"{where}: {mistaken!r} is an event's name and another's key; expected another name")
    return events


class Events:
    """The events of a walk (a steered live video), and which are active. Any thread may call the methods."""

    def __init__(self, events: Iterable[WorldEvent] = (), prompt: str = "") -> None:
        """Split the full prompt `prompt` into the base prompt and the active `events`. The events' sentences end the
        prompt."""
        self.all = tuple(events)
        self._lock, self._by_time = Lock(), frozenset[str]()
        self.set_full_prompt(prompt)

    @property
    def active(self) -> frozenset[str]:
        return self._active

    @property
    def prompt(self) -> str:
        """The full prompt: the base prompt, followed by the sentences of the active events."""
        text = self._base
        for event in self.all:
            if event.name in self._active:
                text = _append(text, event.text)
        return text

    def set_full_prompt(self, prompt: str, *, keep_started: bool = False) -> None:
        """Split a full prompt into the base prompt and the active events, whose sentences end the prompt. The next
        `advance` starts each due event that the prompt lacks. With `keep_started`, it starts only events that have not
        started."""
        with self._lock:
            active, base = set(), prompt
            for event in reversed(self.all):
                before = base.removesuffix(f" {event.text}")
                if before != base:
                    base = before
                    active.add(event.name)
            self._base, self._active = base, frozenset(active)
            if not keep_started:
                self._by_time = frozenset(event.name for event in self.all if event.start is not None) & self._active

    def set_base_prompt(self, prompt: str) -> str:
        """Set the base prompt, and return the full prompt with the sentences of active events."""
        with self._lock:
            self._base = prompt
            return self.prompt

    def switch(self, name: str, on: bool | None = None) -> str:
        """Switch an event by name or key; `on` None toggles it. Return the full prompt. Raise InputError if unknown."""
        found = next(
            (event.name for event in self.all if isinstance(name, str) and name in (event.name, event.key)), None
        )
        if found is None:
            known = ", ".join(event.name for event in self.all) or "none; name some with `events`"
            raise InputError(f"no event {name!r:.40}; the events of this world: {known}")
        with self._lock:
            holds = found not in self._active if on is None else on
            self._active = self._active | {found} if holds else self._active - {found}
            return self.prompt

    def advance(self, seconds: float) -> str | None:
        """Activate events that began, and deactivate those that ended, up to the video's time `seconds`. Return the new
        full prompt, or None if neither happened."""
        with self._lock:
            due = frozenset(event.name for event in self.all if event.is_due(seconds))
            began, ended = due - self._by_time, self._by_time - due
            if not began and not ended:
                return None
            self._by_time, self._active = due, (self._active | began) - ended
            return self.prompt

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the events as dicts in the format of `read_events`."""
        return [{name: value for name, value in asdict(event).items() if value is not None} for event in self.all]


def check_times(events: Iterable[WorldEvent], chunks: int, seconds: float) -> None:
    """Raise InputError if no event is timed, that is, has a start, or if a timed event is inactive at the start of
    every chunk. The video has `chunks` chunks of `seconds` seconds."""
    timed = [event for event in events if event.start is not None]
    if not timed:
        raise InputError("`events`: none has a start; expected the second at which each begins")
    for event in timed:
        name, last = f"`events`: {event.name!r:.60} begins at {event.start:g} s", (chunks - 1) * seconds
        if (event.start or 0.0) > last:
            raise InputError(
                f"{name}, and the video ends at {last + seconds:g} s, its last chunk begins at {last:g} s; make a "
                "longer video, or begin the event earlier"
            )
        if not any(event.is_due(chunk * seconds) for chunk in range(chunks)):
            raise InputError(
                f"{name} and ends at {event.end:g} s, and no chunk begins between; expected at least the {seconds:g} s "
                "of a chunk"
            )


def prompts_by_second(events: Iterable[WorldEvent], prompt: str) -> list[tuple[float, str]]:
    """Return pairs (second, full prompt), one for each change of a video's prompt, beginning at second 0."""
    world = Events(events, prompt)
    times = {time for event in world.all for time in (event.start, event.end) if time is not None}
    found = [(0.0, prompt)]
    for time in sorted({0.0, *times}):
        text = world.advance(time)
        found += [] if text is None else [(time, text)]
    return found[1:] if len(found) > 1 and not found[1][0] else found


def changes_by_chunk(parts: Sequence[tuple[float, Part]], chunks: int, seconds: float) -> list[tuple[int, Part]]:
    """Convert changes (second, part), in order of time, to changes (chunk index, part), without unchanged chunks. Each
    of `chunks` chunks lasts `seconds` and uses the latest part at its start."""
    held = [[part for time, part in parts if time <= chunk * seconds][-1] for chunk in range(chunks)]
    return [(chunk, part) for chunk, part in enumerate(held) if not chunk or part is not held[chunk - 1]]


def _append(prompt: str, sentence: str) -> str:
    return f"{prompt} {sentence}" if prompt.rstrip()[-1:] in ".!?;:," else f"{prompt}. {sentence}"


def events_of(text: str) -> tuple[WorldEvent, ...]:
    """Return the events in a JSON text, in the format of `read_events`. Raise InputError for an invalid text."""
    return read_events(_parse("`events`", text))


def _parse(where: str, text: str) -> Any:
    check_types({"events": text}, {"events": str})
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}); expected a list of events with text and start") from error


def _event(where: str, number: int, row: Any) -> WorldEvent:
    if isinstance(row, WorldEvent):
        row = asdict(row)
    at = f"{where}: event {number}"
    if isinstance(row, Mapping):
        row = {"name": row.get("text"), **row}
        if "second" in row and "start" not in row:
            row["start"] = row.pop("second")
    if not isinstance(row, Mapping):
        raise InputError(f"{at} is {row!r:.80}; expected an object of {', '.join(FIELDS)}")
    unknown = next((name for name in row if name not in FIELDS), None)
    if unknown is not None:
        more = " next to `start`" if unknown == "second" else ""
        raise InputError(f"{at} has {unknown!r:.40}{more}; expected an object of {', '.join(FIELDS)}")
    for name in ("text", "name"):
        value = row.get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > 1000:
            raise InputError(f"{at}: `{name}` is {value!r:.40}; expected text of 1 to 1000 characters")
        check_text(f"{at}: `{name}`", value)
    key, start, end = row.get("key"), _seconds(at, "start", row), _seconds(at, "end", row)
    if key is not None and (str(key) not in KEYS or len(str(key)) != 1):
        raise InputError(f"{at}: `key` is {key!r:.40}; expected 1 to 9")
    if end is not None and end <= (start or 0.0):
        raise InputError(f"{at}: `end` is {end:g} s, and the start is {start or 0:g} s; expected a later end")
    start = 0.0 if start is None and end is not None else start
    return WorldEvent(row["name"].strip(), row["text"].strip(), None if key is None else str(key), start, end)


def _seconds(at: str, name: str, row: Mapping[str, Any]) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LATEST:
        raise InputError(f"{at}: `{name}` is {value!r:.40}; expected seconds of the walk, from 0 to {LATEST:g}")
    return float(value)
