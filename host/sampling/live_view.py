"""The websocket connection between a Live node, which runs in a thread, and the page that shows its steered video."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import comfy.model_management as management
from comfy_execution.utils import get_executing_context

from ...errors import InputError, LingBotError
from ...live import Frames, Session
from ...live.wire.client import Client
from ...live.wire.codec import JSON
from ...live.wire.protocol import ClientEvent, Init
from ...live.wire.steering import (
    RESTART_POLL_SECONDS,
    TimeLimits,
    figures_status,
    handle_events,
    seconds_since_input,
    start_status,
    steer,
)
from ...options import FPS
from .live_route import views

WALKS_EVENT = "lingbot_world.walks"
"""The type of the message that reports the number of running walks (steered videos) to every page."""
START_EVENT = "lingbot_world.start"
"""The type of a message to the browser page that queued the prompt, about the walk's start image."""
STOPPED = 1000
"""The websocket close code that the view's Stop button sends. A closed page or a broken connection has another code."""


@contextmanager
def live_view(wait: float) -> Iterator["LiveView"]:
    """Yield a LiveView that waits at most `wait` seconds for a client of the running node, and close it at the end."""
    from server import PromptServer

    server, context = getattr(PromptServer, "instance", None), get_executing_context()
    node = "" if context is None else context.node_id
    view = LiveView(server, wait)
    views[node] = view
    _tell_pages(server)
    try:
        yield view
    finally:
        del views[node]
        view.end()
        _tell_pages(server)


def _tell_pages(server) -> None:
    """Send the number of running walks to every page, not only to the page that queued the prompt."""
    if server is not None:
        server.send_sync(WALKS_EVENT, {"walks": len(views)})


class LiveView:
    """The connection between a walk (a steered video) and at most one client. Only `serve_client` is called in the
    server's event loop; the other public methods are called from other threads."""

    def __init__(self, server, wait: float):
        self._server, self._wait, self._limits = server, wait, TimeLimits()
        self._session: Session | None = None
        self._client: Client | None = None
        self._ready, self._ended = asyncio.Event(), False
        self._steered = self._stopped = self._prompts = False
        self._resume_on_connect = (
            True  # whether a client that connects resumes the walk: false after a client left it paused
        )
        self._alone_since = 0.0
        self._last_frames: Frames | None = None
        self._folder = ""  # of the walk to which the last frames belong
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="lingbot-live")

    @property
    def no_client_message(self) -> str:
        """The error message for a walk that has neither a client that steers nor a recorded path."""
        return (
            f"nobody opened the live view within {self._wait:g} s: run the workflow from the canvas, where the "
            "node's view opens by itself, or connect a camera path to `recorded path`, which the camera then follows"
        )

    def wait_for_client(self, alone: bool) -> bool:
        """Wait until a client has connected or the walk is stopped, and return True. Return False after the time limit.
        `alone`: whether the walk can run without a client. If so, the limit is 0 while ComfyUI's page is closed."""
        page = None if self._server is None else self._server.sockets.get(self._server.client_id)
        ends = time.monotonic() + (0 if alone and page is None else self._wait)
        while self._client is None and not self._stopped and time.monotonic() < ends:
            management.throw_exception_if_processing_interrupted()
            time.sleep(0.05)
        return self._stopped or self._client is not None

    def show_start(self, image: Mapping[str, str], size: tuple[int, int]) -> None:
        """Send ComfyUI's reference to the start image, and its (width, height), to the page that queued the prompt."""
        if self._server is not None and (context := get_executing_context()) is not None:
            start = {"node": context.node_id, "image": image, "width": size[0], "height": size[1]}
            self._server.send_sync(START_EVENT, start, self._server.client_id)

    def begin(self, session: Session, *, steered: bool, prompts: bool) -> None:
        """Connect the client to the session. `steered` lets it move the camera, `prompts` lets it change the text."""
        self._session, self._steered, self._prompts = session, steered, prompts
        self._folder = str(session.walk.store.folder)
        self._alone_since = time.monotonic()
        self._call_in_loop(self._ready.set)

    def deliver(self, frames: Frames) -> None:
        """Send frames to the client. A client that connects later gets the last frame first."""
        self._call_in_loop(self._offer, frames)

    def tell(self, kind: str, message: dict[str, Any]) -> None:
        """Send an event of the session to the client, from any thread. `live.making.EventCallback` lists the events."""
        self._call_in_loop(self._tell, kind, message)

    def poll_client(self) -> None:
        """Stop a steered walk if the client has pressed Stop, left, or sent no input for long. Pause it after a shorter
        time without input. Raise ComfyUI's InterruptProcessingException if the user cancels the run."""
        management.throw_exception_if_processing_interrupted()
        session, alone = self._session, time.monotonic() - self._alone_since
        if not self._steered:
            return
        left, quiet = self._client is None and alone > self._limits.reconnect, seconds_since_input(session)
        if self._stopped or left or quiet > self._limits.gone:
            session.stop()
        elif quiet > self._limits.idle and not session.paused:
            session.pause()

    def end(self) -> None:
        """Notify the client that the walk has ended, and close the view."""
        self._call_in_loop(self._end)
        self._threads.shutdown(wait=False)

    async def serve_client(self, socket, init: Init, inbox) -> None:
        """Disconnect an earlier client, and serve this one until it leaves or the view ends. `init` is its first
        message; `inbox` reads the others."""
        client = Client(socket, init, self._threads, JSON)
        before = self._client
        if before is not None:
            self._disconnect(before, stopped=False)  # a walk that it has paused stays paused
            before.queue_message({"type": "error", "content": "the walk runs in another view"})
            before.finish()
        self._client = client
        sending, gone = asyncio.create_task(client.send()), asyncio.create_task(inbox.ended.wait())
        try:
            await asyncio.wait({asyncio.create_task(self._ready.wait()), sending, gone}, return_when="FIRST_COMPLETED")
            if self._ready.is_set() and not self._ended:
                await self._serve(client, inbox, sending)
        finally:
            gone.cancel()
            self._disconnect(client, inbox.ended.is_set() and inbox.code == STOPPED)
            client.finish()  # the last messages are still sent
            await asyncio.wait({sending}, timeout=2)
            sending.cancel()

    async def _serve(self, client: Client, inbox, sending: asyncio.Task) -> None:
        status = await self._start_status(client, inbox)
        if status is None:
            return
        if client.moving is not None:
            self._session.moving = client.moving
        client.queue_message({**status, "prompts": self._prompts, "steered": self._steered, "resume": "the canvas"})
        if self._last_frames is not None and self._folder == status["folder"]:  # a paused walk sends no frame by itself
            last, first = self._last_frames, self._last_frames.first + len(self._last_frames.pixels) - 1
            poses = None if last.poses is None else last.poses[-1:]
            client.queue_frames(replace(last, pixels=last.pixels[-1:], first=first, poses=poses, inputs=(), event=None))
        if self._steered:
            self._session.controls.release_all()
            if self._resume_on_connect:
                self._session.resume()
            else:
                client.queue_message({"type": "status", "content": "paused"})
        tasks = [
            asyncio.create_task(handle_events(inbox, client, self._apply_event)),
            asyncio.create_task(self._figures(client)),
        ]
        try:
            await asyncio.wait({*tasks, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _start_status(self, client: Client, inbox) -> dict[str, Any] | None:
        while not (client.finished or inbox.ended.is_set()):
            with suppress(InputError):
                return start_status(self._session, FPS)
            await asyncio.sleep(RESTART_POLL_SECONDS)
        return None

    async def _apply_event(self, event: ClientEvent) -> None:
        if event.kind == "output":
            if self._client is not None:
                self._client.set_output(event.payload)
        elif self._steered and not self._ended:
            if event.kind == "restart":
                self._session.restart()
            steer(self._session, event)

    async def _figures(self, client: Client) -> None:
        while not self._ended:
            await asyncio.sleep(1)
            with suppress(LingBotError):  # between two walks
                client.queue_message(figures_status(self._session, client))

    def _disconnect(self, client: Client, stopped: bool) -> None:
        if self._client is not client:
            return  # another has taken its place
        self._client, self._alone_since = None, time.monotonic()
        self._stopped = self._stopped or stopped
        if self._session is not None and self._steered and not self._ended:
            self._resume_on_connect = not self._session.paused
            self._session.controls.release_all()
            self._session.pause()

    def _offer(self, frames: Frames) -> None:
        self._last_frames = frames
        if self._client is not None:
            self._client.queue_frames(frames)

    def _tell(self, kind: str, message: dict[str, Any]) -> None:
        if kind in ("back", "restarted"):
            self._last_frames, self._folder = None, message.get("folder", self._folder)
        if self._client is None:
            return
        if kind in ("back", "restarted"):
            self._client.drop_frames()
        self._client.queue_message({"type": "status", "content": kind, **message})

    def _end(self) -> None:
        self._ended = True
        self._ready.set()
        if self._client is not None:
            self._client.queue_message({"type": "status", "content": "ended"})
            self._client.finish()

    def _call_in_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._server is not None:
                self._server.loop.call_soon_threadsafe(function, *arguments)
