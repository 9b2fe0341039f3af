"""The walk of an assistant: each call makes chunks, and returns a description and the last frame.

Importing this module does not import torch, so that a client's first request is answered at once."""

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
from ...options import FPS
from ..live.beginning import start_of

if TYPE_CHECKING:
    from ...live import Engine, Session, Start

LONGEST = 10.0
"""The most seconds of one action: the client waits for its frames."""
Seen = tuple[str, bytes]
"""A description of the walk, and its last frame as JPEG."""


class Explorer:
    """A model and one walk at a time. The model is opened with the first walk. Calls wait for each other. Methods raise
    a LingBotError for bad input; the walk then stays as it was."""

    def __init__(self, ckpt: str | Path, options: dict[str, Any], walks: str | Path, events: Any = None) -> None:
        """Keep the model's folder, the `options` of `open_live`, the folder for walks, and a file of events, which
        replaces that of the package."""
        self._ckpt, self._options, self._walks, self._events = ckpt, options, walks, events
        self._opened: tuple[Engine, Start] | None = None
        self._session: Session | None = None
        self._seen: np.ndarray | None = None
        self._pose, self._frames, self._lock = np.eye(4), 0, Lock()

    def start(self, image: str | None, prompt: str | None, seed: int, continue_from: str | None) -> Seen:
        """Begin a walk at an image or after a state, and make its first chunk; the last walk ends."""
        from ...live import Session
        from ..live.opening import find_events, open_live

        with self._lock:
            events = find_events(self._ckpt, self._events)
            if self._opened is None:
                begun = {"image": image, "prompt": prompt, "continue_from": continue_from}
                self._opened = open_live(
                    self._ckpt, **self._options, **{name: value for name, value in begun.items() if value is not None}
                )
            engine, default = self._opened
            start = replace(start_of(engine, default, image, prompt, continue_from), seed=seed)
            start.check(engine)
            self._end()
            self._session = Session(engine, start, folder=self._walks, fps=0, events=events)
            return self._make(1)

    def act(self, keys: Sequence[str], seconds: float, yaw: float, pitch: float) -> Seen:
        """Hold the keys for some seconds, and turn by degrees, right and up."""
        with self._lock:
            session = self._walk()
            if not 0 < seconds <= LONGEST:
                raise InputError(f"`seconds` is {seconds:g}; expected more than 0 and at most {LONGEST:g}")
            session.hold(keys)
            if yaw or pitch:
                session.look(yaw, pitch)
            try:
                return self._make(max(1, round(seconds * FPS / (4 * session.engine.chunk))))
            finally:
                session.hold(())

    def look(self) -> Seen:
        """Return the last frame again; nothing is made."""
        with self._lock:
            return self._describe(self._walk())

    def prompt(self, text: str, at_once: bool) -> str:
        """Change what the world shows from the next action on."""
        with self._lock:
            session = self._walk()
            session.prompt(text, refresh=at_once)
            return f"From the next action on: {session.events.say(text)}"

    def event(self, name: str, on: bool | None) -> str:
        """Begin or end an event of the world."""
        with self._lock:
            session = self._walk()
            session.event(name, on)
            return f"Events from the next action on: {', '.join(sorted(session.events.active)) or 'none'}"

    def save(self) -> str:
        """Write the walk's state and camera path into its folder."""
        from ...live.folder.reading import save_whole

        with self._lock:
            folder = self._walk().walk.kept.folder
            save_whole(folder)
            return (
                f"Saved in {folder}: walk.state, and the camera path in camera/. walk.mp4 is whole when the walk ends."
            )

    def close(self) -> None:
        """End the walk; its folder stays."""
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
        x, y, z = self._pose[:3, 3]
        right, down, ahead = self._pose[:3, 2]
        yaw, pitch = np.rad2deg([np.arctan2(right, ahead), -np.arcsin(np.clip(down, -1, 1))])
        active = sorted(session.events.active)
        known = ", ".join(event.name for event in session.events.all)
        lines = [
            f"{self._frames / FPS:.1f} s of the walk in {session.walk.kept.folder}",
            f"camera at {x:.2f} right, {-y:.2f} up, {z:.2f} ahead of the start; facing {yaw:.0f} degrees right, "
            f"{pitch:.0f} up",
            f"prompt: {session.walk.kept.last_prompt[0]}",
            *([f"events: {known}; active: {', '.join(active) or 'none'}"] if known else []),
        ]
        picture = BytesIO()
        Image.fromarray(self._seen).save(picture, "JPEG", quality=90)
        return "\n".join(lines), picture.getvalue()
