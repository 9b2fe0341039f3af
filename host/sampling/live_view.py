"""The view of a node's walk: the client's websocket on one side, the thread of the node on the other."""

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
from ...live.wire.protocol import Event, Init
from ...live.wire.steering import BETWEEN_WALKS, Rules, facts, figures, obey, quiet_since, steer
from ...options import FPS
from .live_route import views

WALKS_EVENT, START_EVENT = "lingbot_world.walks", "lingbot_world.start"
"""The messages to pages: the number of running walks, to every page; the start image of a walk, to the page of the
prompt."""
STOPPED = 1000
"""The websocket close code of the view's Stop button. A closed page, a removed node or a broken connection has another
code."""


@contextmanager
def live_view(wait: float) -> Iterator["LiveView"]:
    """Yield the view of the node that ComfyUI is running."""
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
    """Send the number of running walks to every page, because a page that queued nothing hears of no node."""
    if server is not None:
        server.send_sync(WALKS_EVENT, {"walks": len(views)})


def last_of(frames: Frames) -> Frames:
    """Return the last frame, without the inputs of which the first client heard."""
    poses = None if frames.poses is None else frames.poses[-1:]
    first = frames.first + len(frames.pixels) - 1
    return replace(frames, pixels=frames.pixels[-1:], first=first, poses=poses, inputs=(), event=None)


class LiveView:
    """The one client that views a walk and steers it. `meet` runs on the event loop; all other methods are for the
    thread of the node. `server` is ComfyUI's PromptServer, or None."""

    def __init__(self, server, wait: float):
        """Create a view that waits `wait` seconds for a client."""
        self._server, self._wait, self._rules = server, wait, Rules()
        self._session: Session | None = None
        self._client: Client | None = None
        self._ready, self._ended = asyncio.Event(), False
        self._steered = self._stopped = self._prompts = False
        self._goes_on = True  # whether a client that connects resumes the walk: false after a client left it paused
        self._alone_since = 0.0
        self._newest: Frames | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="lingbot-live")

    @property
    def nobody(self) -> str:
        """The error message for a view that no client opened."""
        return (
            f"nobody opened the live view within {self._wait:g} s: run the workflow from the canvas, where the "
            "node's view opens by itself, or connect a camera path to `recorded path`, which the camera then follows"
        )

    def somebody(self, alone: bool) -> bool:
        """Wait for a client. Return whether one connected or stopped the walk in time. ComfyUI can interrupt the
        wait.

        If the walk can run `alone` and the page that queued the prompt is not connected, return at once."""
        asked = None if self._server is None else self._server.sockets.get(self._server.client_id)
        ends = time.monotonic() + (0 if alone and asked is None else self._wait)
        while self._client is None and not self._stopped and time.monotonic() < ends:
            management.throw_exception_if_processing_interrupted()
            time.sleep(0.05)
        return self._stopped or self._client is not None

    def show_start(self, image: Mapping[str, str], size: tuple[int, int]) -> None:
        """Send the start image, as ComfyUI names its files, and its width and height to the page of the prompt."""
        if self._server is not None and (context := get_executing_context()) is not None:
            start = {"node": context.node_id, "image": image, "width": size[0], "height": size[1]}
            self._server.send_sync(START_EVENT, start, self._server.client_id)

    def begin(self, session: Session, *, steered: bool, prompts: bool) -> None:
        """Attach the session after its world is built. `steered`: the client may steer; `prompts`: the client may
        change the prompt."""
        self._session, self._steered, self._prompts = session, steered, prompts
        self._alone_since = time.monotonic()
        self._in_the_loop(self._ready.set)

    def deliver(self, frames: Frames) -> None:
        self._in_the_loop(self._offer, frames)

    def tell(self, kind: str, told: dict[str, Any]) -> None:
        """Forward an event of the session to the client."""
        self._in_the_loop(self._tell, kind, told)

    def watch(self) -> None:
        """Stop a steered walk that the client stopped, left or no longer steers; pause one that is idle. Raises
        ComfyUI's interrupt."""
        management.throw_exception_if_processing_interrupted()
        session, alone = self._session, time.monotonic() - self._alone_since
        if not self._steered:
            return
        left, quiet = self._client is None and alone > self._rules.back, quiet_since(session)
        if self._stopped or left or quiet > self._rules.gone:
            session.stop()
        elif quiet > self._rules.idle and not session.paused:
            session.pause()

    def end(self) -> None:
        """End the view because the node is done, and notify the client."""
        self._in_the_loop(self._end)
        self._threads.shutdown(wait=False)

    async def meet(self, socket, init: Init, inbox) -> None:
        """Serve a client from its init message to its end. A client that was connected before is replaced."""
        client = Client(socket, init, self._threads, JSON)
        before, self._client = self._client, client
        if before is not None:
            before.tell({"type": "error", "content": "the walk runs in another view"})
            before.finish()
        sending, gone = asyncio.create_task(client.send()), asyncio.create_task(inbox.ended.wait())
        try:
            await asyncio.wait({asyncio.create_task(self._ready.wait()), sending, gone}, return_when="FIRST_COMPLETED")
            if self._ready.is_set() and not self._ended:
                await self._look(client, inbox, sending)
        finally:
            gone.cancel()
            self._left(client, inbox.ended.is_set() and inbox.code == STOPPED)
            client.finish()  # the last messages are still sent
            await asyncio.wait({sending}, timeout=2)
            sending.cancel()

    async def _look(self, client: Client, inbox, sending: asyncio.Task) -> None:
        told = await self._facts(client, inbox)
        if told is None:
            return
        if client.moving is not None:
            self._session.moving = client.moving
        client.tell({**told, "prompts": self._prompts, "steered": self._steered, "resume": "the canvas"})
        if self._newest is not None:
            client.offer(last_of(self._newest))  # a walk that rests sends no frame by itself
        if self._steered:
            self._session.controls.let_go()
            if self._goes_on:
                self._session.resume()
            else:
                client.tell({"type": "status", "content": "paused"})
        tasks = [asyncio.create_task(obey(inbox, client, self._do)), asyncio.create_task(self._figures(client))]
        try:
            await asyncio.wait({*tasks, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _facts(self, client: Client, inbox) -> dict[str, Any] | None:
        """Return the current walk's facts. A client that connects during a restart waits for the new walk.

        Returns None if the run has ended, or the client has left or been replaced."""
        while not (client.finished or inbox.ended.is_set()):
            with suppress(InputError):
                return facts(self._session, FPS)
            await asyncio.sleep(BETWEEN_WALKS)
        return None

    async def _do(self, event: Event) -> None:
        if event.kind == "output":
            if self._client is not None:
                self._client.output(event.payload)
        elif self._steered and not self._ended:
            if event.kind == "restart":
                self._session.restart()
            steer(self._session, event)

    async def _figures(self, client: Client) -> None:
        while not self._ended:
            await asyncio.sleep(1)
            with suppress(LingBotError):  # between two walks
                client.tell(figures(self._session, client))

    def _left(self, client: Client, stopped: bool) -> None:
        if self._client is not client:
            return  # another has taken its place
        self._client, self._alone_since = None, time.monotonic()
        self._stopped = self._stopped or stopped
        if self._session is not None and self._steered and not self._ended:
            self._goes_on = not self._session.paused
            self._session.controls.let_go()
            self._session.pause()

    def _offer(self, frames: Frames) -> None:
        self._newest = frames
        if self._client is not None:
            self._client.offer(frames)

    def _tell(self, kind: str, told: dict[str, Any]) -> None:
        if kind in ("back", "restarted"):
            self._newest = None
        if self._client is None:
            return
        if kind in ("back", "restarted"):
            self._client.forget()
        self._client.tell({"type": "status", "content": kind, **told})

    def _end(self) -> None:
        self._ended = True
        self._ready.set()
        if self._client is not None:
            self._client.tell({"type": "status", "content": "ended"})
            self._client.finish()

    def _in_the_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended
            if self._server is not None:
                self._server.loop.call_soon_threadsafe(function, *arguments)
