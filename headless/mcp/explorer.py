"""The walk of an AI assistant through a generated world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ...errors import InputError
from ...options import FPS, SIZE
from ..live.beginning import CAUSAL_FOLDER, EXAMPLE, start_of

if TYPE_CHECKING:
    from ...live import Engine, Session, Start
    from ..rollout_plan import RolloutPlan

LONGEST = 10.0
"""The maximum length of one action, in seconds of video."""
Seen = tuple[str, bytes]
"""A pair (description of the walk's current state, last frame as the bytes of a JPEG file)."""


class Explorer:
    """A model with which an AI assistant walks through a generated world. Invalid input raises a LingBotError and
    leaves the walk unchanged."""

    def __init__(self, ckpt: str | Path, options: dict[str, Any], walks: str | Path, events: Any = None) -> None:
        """Store the arguments without loading the model. `options` are arguments of `open_live`, `walks` is the folder
        for walks, `events` a file of world events."""
        self._ckpt, self._options, self._walks, self._events = ckpt, options, walks, events
        self._opened: tuple[Engine, Start] | None = None
        self._session: Session | None = None
        self._seen: np.ndarray | None = None
        self._pose, self._frames, self._lock = np.eye(4), 0, Lock()

    def check(self) -> RolloutPlan:
        """Return the plan of a walk without loading the model. Raises a LingBotError for an invalid option or file."""
        from ...live.worlds.example import find_events
        from ..live.opening import plan_start

        find_events(self._ckpt, self._events)
        begun = dict(self._options)
        folder = Path(self._ckpt)
        package = folder if (folder / CAUSAL_FOLDER).is_dir() else folder.absolute().parent  # as in `find_beginning`
        if "image" not in begun and not (package / EXAMPLE / "image.png").is_file():
            begun["image"] = np.zeros((*SIZE, 3), np.uint8)
        return plan_start(self._ckpt, **begun)

    def start(self, image: str | None, prompt: str | None, seed: int, continue_from: str | None) -> Seen:
        """End the current walk and begin a new one. `continue_from` is a saved state or a walk's folder, in place of
        `image`."""
        from ...live import Session
        from ...live.worlds.example import find_events
        from ..live.opening import open_live

        with self._lock:
            events = find_events(self._ckpt, self._events)
            if self._opened is None:
                begun = {"image": image, "prompt": prompt, "continue_from": continue_from}
                given = {name: value for name, value in begun.items() if value is not None}
                self._opened = open_live(self._ckpt, **{**self._options, **given})
            engine, default = self._opened
            start = replace(start_of(engine, default, image, prompt, continue_from), seed=seed)
            start.check(engine)
            self._end()
            self._session = Session(engine, start, folder=self._walks, fps=0, events=events)
            return self._make(1)

    def act(self, keys: Sequence[str], seconds: float, yaw: float, pitch: float) -> Seen:
        """Hold keys for some seconds of video, at most LONGEST, and turn by `yaw` right and `pitch` up, in degrees."""
        with self._lock:
            session = self._walk()
            if not 0 < seconds <= LONGEST:
                raise InputError(f"`seconds` is {seconds:g}; expected more than 0 and at most {LONGEST:g}")
            if not (abs(yaw) <= 360 and abs(pitch) <= 360):  # false for NaN
                raise InputError(f"`yaw` is {yaw:g} and `pitch` {pitch:g}; expected -360 to 360 degrees")
            session.hold(keys)
            if yaw or pitch:
                session.look(yaw, pitch)
            try:
                return self._make(max(1, round(seconds * FPS / (4 * session.engine.chunk))))
            finally:
                session.hold(())

    def look(self) -> Seen:
        """Return the current description and frame again, without making new video."""
        with self._lock:
            return self._describe(self._walk())

    def prompt(self, text: str, at_once: bool) -> str:
        """Set the prompt of later chunks, and return a message. `at_once` also recomputes the KV cache of past
        frames."""
        with self._lock:
            session = self._walk()
            session.prompt(text, refresh=at_once)
            return f"From the next action on: {session.events.set_base_prompt(text)}"

    def event(self, name: str, on: bool | None) -> str:
        """Begin an event if `on` is true, end it if false, toggle it if None. Return a message with the active
        events."""
        with self._lock:
            session = self._walk()
            session.event(name, on)
            return f"Events from the next action on: {', '.join(sorted(session.events.active)) or 'none'}"

    def save(self) -> str:
        """Write the walk's state and camera path into its folder. Return a message that names the files."""
        from ...live.folder.reading import write_state_and_camera

        with self._lock:
            folder = self._walk().walk.store.folder
            write_state_and_camera(folder)
            return (
                f"Saved in {folder}: walk.state, and the camera path in camera/. walk.mp4 is whole when the walk ends."
            )

    def close(self) -> None:
        """End the walk. Its folder stays."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._seen = None

    def _walk(self) -> Session:
        if self._session is None:
            raise InputError("no walk has begun; call start_walk first")
        return self._session

    def _make(self, chunks: int) -> Seen:
        session = self._walk()
        for frames in session:
            assert frames.poses is not None  # a walk knows the poses of its frames
            self._seen, self._pose = frames.pixels[-1].copy(), frames.poses[-1]
            self._frames, chunks = frames.first + len(frames.pixels), chunks - frames.last
            if not chunks:
                break
        return self._describe(session)

    def _describe(self, session: Session) -> Seen:
        assert self._seen is not None  # a walk begins with a chunk
        x, up, z = (self._pose[:3, 3] * (1, -1, 1)).round(2) + 0.0  # the zero turns -0 into 0
        right, down, ahead = self._pose[:3, 2]
        yaw, pitch = np.rad2deg([np.arctan2(right, ahead), np.arcsin(np.clip(-down, -1, 1))]).round() + 0.0
        active = sorted(session.events.active)
        known = ", ".join(event.name for event in session.events.all)
        lines = [
            f"{self._frames / FPS:.1f} s of the walk in {session.walk.store.folder}",
            f"camera at {x:.2f} right, {up:.2f} up, {z:.2f} ahead of the start; facing {yaw:.0f} degrees right, "
            f"{pitch:.0f} up",
            f"prompt: {session.walk.store.last_prompt[0]}",
            *([f"events: {known}; active: {', '.join(active) or 'none'}"] if known else []),
        ]
        image = BytesIO()
        Image.fromarray(self._seen).save(image, "JPEG", quality=90)
        return "\n".join(lines), image.getvalue()
