"""The handling of a client's events in a session, and the status messages about its walk."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...camera.plucker import scaled_lens
from ...errors import LingBotError
from ...vae import TINY_DECODER
from ..session import Session
from .client import Client
from .connection import Connection
from .protocol import ClientEvent, read_client_events

RESTART_POLL_SECONDS = 0.1
"""The interval, in seconds, at which a connection checks during a restart whether the new walk exists."""


@dataclass(frozen=True)
class TimeLimits:
    """The time limits of a server, in seconds. A held key counts as input.

    idle: the time without input until a walk pauses; waiting clients may then end it.
    gone: the time without input until a walk ends.
    reconnect: the time that a walk waits for its client after a lost connection.
    reconnect_in_line: in place of `reconnect` while another client waits.
    reading: the time until a connection without a complete request is closed.
    """

    idle: float = 180.0
    gone: float = 1800.0
    reconnect: float = 60.0
    reconnect_in_line: float = 10.0
    reading: float = 30.0


async def handle_events(inbox: Connection, client: Client, do: Callable[[ClientEvent], Awaitable[None]]) -> None:
    """Call `do(event)` for each event until the client disconnects. A LingBotError is sent to the client."""
    while True:
        try:
            message = await inbox.next()
            if message is None:
                return
            for event in read_client_events(message):
                await do(event)
        except LingBotError as error:
            client.queue_message({"type": "error", "content": str(error)})


def steer(session: Session, event: ClientEvent) -> None:
    """Apply a client's event to the session. The kinds `restart` and `output` only resume a paused session here; the
    caller does the rest. Raises a LingBotError for an invalid event."""
    payload, number, goes_on = event.payload, event.number, event.kind != "pause"
    if event.kind == "camera_actions" and "script" in payload:
        session.script(payload["script"], number)
    elif event.kind == "camera_actions":
        before = session.controls.down
        for keys in payload["held"]:
            session.hold(keys, number)
        goes_on = any(set(keys) - before for keys in payload["held"])
    elif event.kind == "look":
        goes_on = not session.paused
        yaw, pitch = payload
        if goes_on:
            session.look(yaw, pitch, number)
    elif event.kind == "stick":
        forward, right, yaw, pitch = payload
        session.stick(forward, right, yaw, pitch, number)
        goes_on = any(payload)
    elif event.kind == "prompt":
        session.prompt(payload[0], refresh=payload[1], event=number)
    elif event.kind == "event":
        session.event(payload[0], payload[1], refresh=payload[2], event=number)
    elif event.kind == "back":
        session.back(payload, number)
    elif event.kind == "moving":
        session.moving = payload
    elif event.kind == "pause":
        session.pause()
    if goes_on:
        session.resume()


def seconds_since_input(session: Session) -> float:
    """Return the seconds since the session's last input. While an input is held, each new chunk restarts the count."""
    return time.monotonic() - session.controls.last_input


def start_status(session: Session, fps: float) -> dict[str, Any]:
    """Return the first status message about the session's walk. Raises InputError during a restart."""
    engine, walk, device = session.engine, session.walk, session.engine.device
    store = walk.store
    return {
        "type": "status",
        "content": "started",
        "folder": str(store.folder),
        "width": engine.size[1],
        "height": engine.size[0],
        "fps": fps,
        "lens": [round(float(value), 3) for value in scaled_lens(store.lens, *engine.size)],
        "chunk": engine.chunk,
        "window": engine.window.frames,
        "sink": engine.window.sink,
        "release": engine.release,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "moving": session.moving,
        "speed": session.speed,
        "seed": walk.seed,
        "decoder": "vae" if engine.new_tiny_decoder is None else TINY_DECODER,
        "preview": engine.new_tiny_decoder is not None,
        "prompt": store.last_prompt[0],
        "events": session.events.as_dicts(),
        "active": sorted(session.events.active),
        "notes": list(engine.notes),
        **({} if walk.map is None else {"map": {**walk.map.facts(), "found": walk.found}}),
    }


def figures_status(session: Session, client: Client | None) -> dict[str, Any]:
    """Return the status message with current figures, such as the frame rate. `client` supplies the dropped frames (0
    if None). Raises InputError during a restart."""
    pace, device = session.pace, session.engine.device
    drift = session.drift.ratios
    free, whole = torch.cuda.mem_get_info(device) if device.type == "cuda" else (0, 0)
    return {
        "type": "status",
        "content": "figures",
        "rate": round(pace.rate(), 2),
        "late": pace.late,
        "stalls": pace.stalls,
        "frames": pace.frames,
        "chunks": session.walk.chunks,
        "busy": round(pace.busy(), 3),
        "dropped": client.dropped if client else 0,
        "gpu_used": whole - free,
        "gpu_total": whole,
        "paused": session.paused,
        "still": session.still,
        "preempted": session.walk.preempted,
        **({} if drift is None else {"drift": {name: round(value, 3) for name, value in drift.items()}}),
        "left_out": 0 if session.video is None else session.video.left_out,
    }
