"""A walk that a client steers: the session, its video, and what the client's events ask of them."""

from __future__ import annotations

import secrets
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from ...errors import LingBotError
from ...live import Frames, Session, Start
from ...pipeline.geometry import Geometry, first_frame
from ...pipeline.state import WorldState
from .client import Client
from .opening import Asked, Opened
from .pictures import read_picture
from .protocol import Event, Init
from .recording import Recording


class Visit:
    """One client's walk, or nobody's while its connection is broken. A thread may make and close it."""

    def __init__(self, opened: Opened, init: Init, folder: Path) -> None:
        """Raises InputError for what cannot be walked."""
        self.opened, self.init, self.token = opened, init, secrets.token_urlsafe(12)
        self.client: Client | None = None
        self.chunks, self.idle = 0, False
        size = init.size or _size_of(opened.start)
        self._engine = opened.engine(Asked(size, init.window, init.sink, init.chunk))
        start = _start(opened, init, self._engine.size)
        self.session = Session(self._engine, start, folder=folder, fps=init.fps)
        if init.script is not None:
            self.session.script(init.script)
        self.recording = self._record()

    def _record(self) -> Recording:
        return Recording(self.session.walk.kept.folder / "walk.mp4", self.init.fps)

    def start(
        self, loop: AbstractEventLoop, deliver: Callable[[Frames], None], told: Callable[[str, dict[str, Any]], None]
    ) -> None:
        """Has the walk begin, or go on after a pause. What it makes and tells is given to functions of the loop."""

        def in_the_loop(function: Callable[..., None], *arguments: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(function, *arguments)

        def made(frames: Frames) -> None:
            self.recording.add(frames)
            in_the_loop(deliver, frames)

        def tell(kind: str, facts: dict[str, Any]) -> None:
            if kind == "restarted":
                self.recording.close()
                self.recording = self._record()
            in_the_loop(told, kind, facts)

        self.session.start(made, tell)

    def do(self, event: Event) -> None:
        """What an event asks for. A thread may do it. Raises a LingBotError."""
        session, payload, number = self.session, event.payload, event.number
        if event.kind == "camera_actions" and "script" in payload:
            session.script(payload["script"], number)
        elif event.kind == "camera_actions":
            for keys in payload["held"]:
                session.hold(keys, number)
        elif event.kind == "look":
            yaw, pitch = payload
            session.look(yaw, pitch, number)
        elif event.kind == "stick":
            forward, right, yaw, pitch = payload
            session.controls.stick(forward, right, yaw, pitch, number)
        elif event.kind == "prompt":
            session.prompt(payload[0], refresh=payload[1])
        elif event.kind == "back":
            session.back(payload)
        elif event.kind == "restart":
            session.restart(_start(self.opened, replace(payload, ours=self.init.ours), self._engine.size))
        elif event.kind == "pause":
            session.pause()
        if event.kind != "pause":
            self.idle = False
            session.resume()

    def facts(self) -> dict[str, Any]:
        """What our own page is told first."""
        engine, walk = self._engine, self.session.walk
        return {
            "type": "status", "content": "started", "resume": self.token, "folder": str(walk.kept.folder),
            "width": engine.size[1], "height": engine.size[0], "fps": self.init.fps, "chunk": engine.chunk,
            "window": engine.window.frames, "sink": engine.window.sink, "release": engine.release,
            "device": _device(engine.device),
            "prompt": walk.kept.last_prompt[0], "notes": list(engine.notes),
        }  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """What our own page is told every second."""
        pace, walk, client = self.session.pace, self.session.walk, self.client
        used, whole = _gpu_memory(self._engine.device)
        return {
            "type": "status", "content": "figures", "rate": round(pace.rate(), 2), "late": pace.late,
            "stalls": pace.stalls, "frames": pace.frames, "chunks": walk.chunks, "busy": round(pace.busy(), 3),
            "dropped": client.dropped if client else 0, "gpu_used": used, "gpu_total": whole,
            "paused": self.session.paused, "left_out": self.recording.left_out,
        }  # fmt: skip

    def quiet_since(self) -> float:
        """Seconds without an input."""
        return time.monotonic() - self.session.controls.changed

    def close(self) -> None:
        """Ends the walk. A state, a camera path and the video stay beside what was kept."""
        self.session.stop()
        with suppress(LingBotError):  # nothing was made, or the disk is full: what was kept is there all the same
            kept = self.session.walk.kept
            kept.state().save(kept.folder / "walk.state")
            kept.save_path(kept.folder / "camera")
        self.session.close()
        self.recording.close()


def _start(opened: Opened, init: Init, size: tuple[int, int]) -> Start | WorldState:
    """Where a client's walk begins: what it does not say is as the server was started."""
    given = opened.start
    if isinstance(given, WorldState):
        if init.image is None:
            return given
        begin = Start(given.frame, given.prompts[-1].text)
    else:
        begin = given
    frame = begin.frame
    if init.image is not None:
        frame = first_frame(read_picture(init.image, size, crop=init.ours), Geometry(*size, frames=1))
    elif tuple(frame.shape[1:]) != size:
        frame = F.interpolate(frame[None], size=size, mode="bicubic", align_corners=False)[0]
    return Start(frame, init.prompt or begin.prompt, begin.lens, init.seed)


def _size_of(start: Start | WorldState) -> tuple[int, int]:
    height, width = start.frame.shape[1:]
    return height, width


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _gpu_memory(device: torch.device) -> tuple[int, int]:
    """Bytes of the GPU that are used, by anybody, and that there are."""
    if device.type != "cuda":
        return 0, 0
    free, whole = torch.cuda.mem_get_info(device)
    return whole - free, whole
