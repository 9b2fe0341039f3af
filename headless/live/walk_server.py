"""The server of walks: the current walk, the queue of waiting clients, and reconnection."""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ...errors import InputError, LingBotError
from ...live import Frames
from ...live.wire.client import Client
from ...live.wire.codec import MSGPACK, Socket
from ...live.wire.connection import Connection
from ...live.wire.protocol import ClientEvent, Init
from ...live.wire.steering import RESTART_POLL_SECONDS, TimeLimits, figures_status, handle_events, seconds_since_input
from ..process.profile import release
from .opening import LoadedModel
from .visit import Visit

T = TypeVar("T")
MAX_QUEUED = 8
"""The maximum number of clients that wait for the model."""
MANY_THREADS = 4
STATISTICS_SECONDS = 1.0
"""The seconds between two status messages with statistics, such as the frame rate."""


class WalkServer:
    """A server with one model: one client walks, and at most MAX_QUEUED wait. All methods run in the event loop."""

    def __init__(self, loaded: LoadedModel, folder: Path, limits: TimeLimits) -> None:
        self.loaded, self.folder, self.limits = loaded, folder, limits
        self.visit: Visit | None = None
        self._taken = False  # true while a client walks, connects or leaves, or may reconnect
        self._leaving = False
        self._queue: deque[tuple[asyncio.Future[None], Client]] = deque()
        self._threads = ThreadPoolExecutor(MANY_THREADS, thread_name_prefix="lingbot-live")
        self._held: asyncio.TimerHandle | None = None  # the end of a walk after its client lost the connection
        self._lost_at = 0.0

    async def enter(self, socket: Socket, init: Init, inbox: Connection) -> None:
        """Serve a client until the client disconnects or the walk ends. `init` is the first message. `inbox` delivers
        later ones. Raises InputError for unsupported settings, a full queue, or a reconnection to an ended walk."""
        client = Client(socket, init, self._threads, MSGPACK)
        sending = asyncio.create_task(client.send())
        try:
            visit = self._resumed(init)
            if visit is None:
                await self._wait_for_turn(client, inbox)
                visit = await self._begin(init)
            await self._walk(visit, client, inbox, sending)
            if sending.done():
                return
            client.finish()  # the last messages are still sent
            await asyncio.wait({sending}, timeout=2)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, ConnectionError, RuntimeError):
                await sending

    def _resumed(self, init: Init) -> Visit | None:
        """Return the current Visit if `init` has its reconnection token, or None if `init` has no token. Raises
        InputError for another token."""
        visit = self.visit
        if not init.resume:
            return None
        if visit is None or not secrets.compare_digest(init.resume.encode(), visit.token.encode()):
            raise InputError("the walk is over: the client did not reconnect in time, or the server was restarted")
        if self._held is not None:
            self._held.cancel()
            self._held = None
        if visit.client is not None:
            visit.client.finish()  # the old connection has not yet noticed that it is broken
        return visit

    async def _wait_for_turn(self, client: Client, inbox: Connection) -> None:
        """Wait until no other client uses the model. Raises ConnectionError if the client disconnects, and InputError
        if the queue is full. A client with SGLang's protocol, which has no message for waiting, gets InputError unless
        its turn comes soon."""
        if not self._taken:
            self._taken = True
            return
        idle = self.visit is not None and self.visit.idle
        # SGLang's protocol cannot tell a client to wait, so its clients wait only if the wait will be short.
        soon = (self._leaving or self._held is not None or idle) and not self._queue
        if not (client.is_own_page or soon) or len(self._queue) >= MAX_QUEUED:
            raise InputError(f"another client walks here, and {len(self._queue)} wait in line; try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, client))
        self._tell_places()
        gone = asyncio.create_task(inbox.wait_closed())  # read the connection here, because no walk reads it yet
        try:
            either: set[asyncio.Future[Any]] = {turn, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if inbox.ended.is_set():
                raise ConnectionError("the client left the line")
        except BaseException:
            if turn.done():
                self._next()
            self._queue = deque(waiting for waiting in self._queue if waiting[0] is not turn)
            self._tell_places()
            raise
        finally:
            gone.cancel()

    def _tell_places(self) -> None:
        if self._held is not None:
            self._limit_hold()
        for place, (_, client) in enumerate(self._queue, 1):
            client.queue_message({"type": "status", "content": "waiting", "place": place})

    def _next(self) -> None:
        self._taken = bool(self._queue)
        if self._queue:
            self._queue.popleft()[0].set_result(None)
            self._tell_places()

    async def _begin(self, init: Init) -> Visit:
        try:
            self.visit = await self._thread(lambda: Visit(self.loaded, init, self.folder))
        except BaseException:
            await self._free()
            raise
        return self.visit

    async def _walk(self, visit: Visit, client: Client, inbox: Connection, sending: asyncio.Task[None]) -> None:
        came_back, visit.client = visit.chunks > 0 or visit.session.running, client
        tasks: list[asyncio.Task[None]] = []
        try:
            client.queue_message(await self._first_status(visit))
            if came_back:
                while visit.missed:
                    client.queue_message(visit.missed.pop(0))
                visit.idle = False
                if visit.goes_on:
                    visit.session.resume()
                elif visit.session.paused:
                    client.queue_message({"type": "status", "content": "paused"})
                visit.goes_on = False
            else:
                visit.start(
                    asyncio.get_running_loop(),
                    lambda frames: self._deliver(visit, frames),
                    lambda kind, facts: self._report(visit, kind, facts),
                )
            obeying = handle_events(inbox, client, lambda event: self._do(visit, client, event))
            tasks = [asyncio.create_task(obeying), asyncio.create_task(self._watch(visit))]
            await asyncio.wait({*tasks, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            if visit.client is client:  # otherwise another connection has taken over
                broke = not inbox.clean and client.is_own_page and not client.finished and not visit.session.failure
                await asyncio.shield(self._hold(visit) if broke else self._free())

    async def _first_status(self, visit: Visit) -> dict[str, Any]:
        """Return a walk's first status message. During a restart, wait for the new walk."""
        while True:
            try:
                return visit.first_status()
            except InputError:
                if not visit.session.running:
                    raise
                await asyncio.sleep(RESTART_POLL_SECONDS)

    def _deliver(self, visit: Visit, frames: Frames) -> None:
        visit.chunks += frames.last
        most = visit.init.most_chunks
        if visit.client is None or (most is not None and visit.chunks > most):
            return
        visit.client.queue_frames(frames)
        if most is not None and visit.chunks == most and frames.last:
            visit.session.pause()
            visit.client.finish()

    def _report(self, visit: Visit, kind: str, facts: dict[str, Any]) -> None:
        client, status = visit.client, {"type": "status", "content": kind, **facts}
        if client is None:
            if kind in ("kept", "ended"):
                visit.missed.append(status)
            return
        if kind in ("back", "restarted"):
            client.drop_frames()
        failed = kind == "failed" and facts["ended"]
        client.queue_message({"type": "error", "content": facts["reason"]} if failed else status)
        if failed or kind == "ended":
            client.finish()

    async def _do(self, visit: Visit, client: Client, event: ClientEvent) -> None:
        if event.kind == "output":
            client.set_output(event.payload)
        elif event.kind == "restart":
            await self._thread(lambda: visit.do(event))
        else:
            visit.do(event)

    async def _watch(self, visit: Visit) -> None:
        """Send measurements, and pause an idle walk. Return when the walk must end for lack of input."""
        while True:
            await asyncio.sleep(STATISTICS_SECONDS)
            quiet = seconds_since_input(visit.session)
            if visit.client is not None and visit.client.is_own_page:
                with suppress(LingBotError):  # raised between two walks
                    visit.client.queue_message(figures_status(visit.session, visit.client))
            if quiet > self.limits.idle and visit.init.most_chunks is None:
                visit.idle = True
                if not visit.session.paused:
                    visit.stopped = True
                    visit.session.pause()
            if quiet > self.limits.gone or (visit.idle and self._queue):
                reason = "the walk had no input for a while and ended; it is kept"
                if visit.client is not None:
                    visit.client.queue_message({"type": "error", "content": reason})
                    visit.client.finish()
                return

    async def _hold(self, visit: Visit) -> None:
        visit.client, visit.goes_on = None, visit.stopped or not visit.session.paused
        visit.session.controls.release_all()
        visit.session.pause()
        self._lost_at = asyncio.get_running_loop().time()
        self._limit_hold()

    def _limit_hold(self) -> None:
        if self._held is not None:
            self._held.cancel()
        limit = self.limits.reconnect_in_line if self._queue else self.limits.reconnect
        self._held = asyncio.get_running_loop().call_at(self._lost_at + limit, self._end_hold)

    def _end_hold(self) -> None:
        self._held = None  # a client that now joins the line must not end the walk again
        asyncio.create_task(self._free())

    async def _free(self) -> None:
        """End the current walk, free its memory, and give the model to the next client."""
        visit, self.visit, self._held, self._leaving = self.visit, None, None, True
        try:
            if visit is not None:
                visit.client = None
                await self._thread(visit.session.close)
            del visit
            await self._thread(lambda: release(self.loaded.plan.device))
        finally:
            self._leaving = False
            self._next()

    async def close(self) -> None:
        """End and save the current walk, and tell its client the walk's folder. Drop all waiting clients."""
        self._queue.clear()
        if self._held is not None:
            self._held.cancel()
        if self.visit is not None:
            if (client := self.visit.client) is not None:
                with suppress(LingBotError):  # raised without a walk, after a failed restart
                    folder = self.visit.session.walk.store.folder
                    client.queue_message({"type": "error", "content": f"the server ends; the walk is kept in {folder}"})
                client.finish()
            await self._free()
        while self._leaving:  # another connection is already freeing the walk
            await asyncio.sleep(0.05)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _thread(self, task: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, task)
