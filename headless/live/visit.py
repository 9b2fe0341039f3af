"""The session of one client of the live server."""

import secrets
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch.nn import functional as F

from ...errors import InputError
from ...live import Engine, Frames, Session, Start
from ...live.folder.settings import saved_walks
from ...live.wire.client import Client
from ...live.wire.protocol import ClientEvent, Init
from ...live.wire.steering import start_status, steer
from ...pipeline.geometry import Geometry, first_frame
from .opening import LoadedModel, WalkSettings
from .pictures import read_upload, upload_notes


class Visit:
    """The session of one client, which stays open for reconnection. All methods must run in the event loop's thread,
    with two exceptions. The constructor, and `do` with a restart event, may run in another thread."""

    def __init__(self, loaded: LoadedModel, init: Init, folder: Path) -> None:
        """Open a session for a client's first message `init`. The walk gets a subfolder of `folder`. Raises InputError
        for unsupported settings."""
        self.loaded, self.init, self.token = loaded, init, secrets.token_urlsafe(12)
        server = loaded.settings
        self.client: Client | None = None
        self.chunks, self.idle = 0, False
        self.stopped = False  # paused by the server for lack of activity
        self.goes_on = False  # resume on reconnection, because the client had not paused it
        self.notes: tuple[str, ...] = ()  # on the client's start image
        self.missed: list[dict[str, Any]] = []  # messages that the client must receive after reconnecting
        if init.replay:
            self._engine, self.session = _replay(loaded, init, folder)
        else:
            height, width = loaded.start.frame.shape[1:]
            settings = WalkSettings(init.size or (height, width), init.window, init.sink, init.chunk)
            self._engine = loaded.engine(settings)
            start = self._start(init)
            speed = server.speed if init.speed is None else init.speed
            # SGLang's clients, and clients that request a number of chunks, send no input until frames arrive.
            moving = server.moving or not init.is_own_page or init.most_chunks is not None
            moving = moving if init.moving is None else init.moving
            self.session = Session(
                self._engine, start, folder=folder, fps=init.fps, speed=speed, moving=moving, events=server.events
            )
        self.session.restart_on_drift = server.restart_on_drift
        self.session.stop_when_stuck = server.stop_when_stuck
        if init.script is not None:
            self.session.script(init.script)

    def start(
        self, loop: AbstractEventLoop, deliver: Callable[[Frames], None], tell: Callable[[str, dict[str, Any]], None]
    ) -> None:
        """Start the session's thread. The callbacks run in the event loop `loop`. `deliver(frames)` gets each batch of
        frames, and `tell(kind, facts)` gets each event of the session."""

        def in_the_loop(function: Callable[..., None], *arguments: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(function, *arguments)

        self.session.start(partial(in_the_loop, deliver), partial(in_the_loop, tell))

    def do(self, event: ClientEvent) -> None:
        """Apply a client's event, such as a key press, to the session. Raises a LingBotError for an invalid event."""
        if event.kind == "restart":
            again = replace(event.payload, is_own_page=self.init.is_own_page)
            self.session.restart(self._start(again))
        self.idle, self.stopped = self.idle and event.kind == "pause", False
        steer(self.session, event)

    def first_status(self) -> dict[str, Any]:
        """Return the walk's first status message, with the reconnection token as `resume`. Raises InputError during a
        restart."""
        first = start_status(self.session, self.init.fps)
        return first | {"notes": [*first["notes"], *self.notes], "resume": self.token}

    def _start(self, init: Init) -> Start:
        start = _start(self.loaded, init, self._engine.size)
        self.notes = () if init.image is None else upload_notes(init.image)
        return start


def _replay(loaded: LoadedModel, init: Init, folder: Path) -> tuple[Engine, Session]:
    found = {walk.name: walk for walk in saved_walks(folder)}
    if init.replay not in found:
        raise InputError(f"there is no walk {init.replay!r} to replay; {len(found)} are kept")
    engine = loaded.engine_of(found[init.replay])
    return engine, Session.replay(engine, found[init.replay], folder=folder, fps=init.fps)


def _start(loaded: LoadedModel, init: Init, size: tuple[int, int]) -> Start:
    """Return the Start of a walk (image, prompt, seed) from a client's first message `init`. Missing fields come from
    `loaded.start`, the server's default. `size`: (height, width), to which the image is scaled."""
    begin = loaded.start
    frame, prompt = begin.frame, init.prompt or begin.prompt
    seed = begin.seed if init.seed is None else init.seed
    if init.image is None and begin.state is not None:
        return replace(begin, prompt=prompt, seed=seed)
    if init.image is not None:
        frame = first_frame(read_upload(init.image, size, crop=init.is_own_page), Geometry(*size, frames=1))
    elif tuple(frame.shape[1:]) != size:
        frame = F.interpolate(frame[None], size=size, mode="bicubic", align_corners=False)[0]
    return Start(frame, prompt, begin.lens, seed)
