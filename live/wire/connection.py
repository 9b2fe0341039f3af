"""The server's side of a client's websocket, with limits on the number and size of messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, WSMsgType, web

from ...errors import InputError, LingBotError
from .codec import Codec
from .protocol import Init, read_init

INIT_SECONDS = 30.0
"""A client must send its init message within this many seconds."""
MESSAGES_PER_SECOND, BURST = 240, 480
"""The rate limit of a connection's messages, as a token bucket: tokens per second, and the bucket's capacity."""
MOST_UNPROCESSED = 64
"""The maximum number of messages of one connection that are read but not yet processed."""
HEARTBEAT = 10.0


class Connection:
    """One client's websocket, whose messages are read at a limited rate.

    ended: an event that is set when the connection ends.
    code: the websocket's close code, valid after the end.
    clean: whether the client closed the connection properly.
    """

    def __init__(self, socket: web.WebSocketResponse, codec: Codec) -> None:
        self.clean, self.ended, self.code = False, asyncio.Event(), 0
        self._socket, self._codec = socket, codec
        self._messages: asyncio.Queue[bytes | str | None] = asyncio.Queue(MOST_UNPROCESSED)
        self._allowed, self._since = float(BURST), time.monotonic()
        self._task = asyncio.create_task(self._read())

    async def next(self) -> dict[str, Any] | None:
        """Return the next message, or None at the end of the connection. Raises InputError for an invalid message."""
        data = await self._messages.get()
        if data is None:
            self._messages.put_nowait(None)
            return None
        return self._codec.read(data)

    async def wait_closed(self) -> None:
        """Wait for the end of the connection; messages until then are ignored."""
        while True:
            with suppress(InputError):
                if await self.next() is None:
                    return

    def close(self) -> None:
        self._task.cancel()

    async def _read(self) -> None:
        with suppress(ConnectionError):
            async for message in self._socket:
                await self._limit_rate()
                if message.type in (WSMsgType.BINARY, WSMsgType.TEXT):
                    await self._messages.put(message.data)
        self.code = self._socket.close_code or 0
        self.clean = self.code in (WSCloseCode.OK, WSCloseCode.GOING_AWAY)
        self.ended.set()
        await self._messages.put(None)

    async def _limit_rate(self) -> None:
        now = time.monotonic()
        self._allowed = min(BURST, self._allowed + MESSAGES_PER_SECOND * (now - self._since)) - 1
        self._since = now
        if self._allowed < 0:
            await asyncio.sleep(-self._allowed / MESSAGES_PER_SECOND)


ClientHandler = Callable[[web.WebSocketResponse, Init, Connection], Awaitable[None]]
"""A function serve_client(socket, init, inbox) that serves one client from its init message until it disconnects."""


async def serve(
    request: web.Request, serve_client: ClientHandler, codec: Codec, most_bytes: int
) -> web.WebSocketResponse:
    """Serve a client from the websocket's handshake to the end of the connection, and return the closed websocket. A
    LingBotError of `serve_client` is sent to the client. `most_bytes` is the maximum size of a client's message."""
    socket = web.WebSocketResponse(max_msg_size=most_bytes, heartbeat=HEARTBEAT, compress=False)
    await socket.prepare(request)
    inbox, code = Connection(socket, codec), WSCloseCode.OK
    try:
        init = await _init(socket, inbox, codec)
        if init is not None:
            await serve_client(socket, init, inbox)
    except InputError as error:
        code = WSCloseCode.POLICY_VIOLATION
        await _refuse(socket, codec, str(error))
    except LingBotError as error:
        code = WSCloseCode.INTERNAL_ERROR
        await _refuse(socket, codec, str(error))
    except (ConnectionError, asyncio.TimeoutError):
        code = WSCloseCode.GOING_AWAY
    finally:
        with suppress(ConnectionError, asyncio.TimeoutError):
            await asyncio.wait_for(socket.close(code=code), 5)
        inbox.close()
    return socket


async def _init(socket: web.WebSocketResponse, inbox: Connection, codec: Codec) -> Init | None:
    while True:
        try:
            message = await asyncio.wait_for(inbox.next(), INIT_SECONDS)
            return None if message is None else read_init(message)
        except InputError as error:  # as on SGLang's server, the client receives the error and may try again
            await _refuse(socket, codec, str(error))


async def _refuse(socket: web.WebSocketResponse, codec: Codec, reason: str) -> None:
    with suppress(ConnectionError):
        await codec.send(socket, {"type": "error", "content": reason})


def foreign_origin(request: web.Request) -> str:
    """Return the `Origin` header of a cross-origin request, or "null" if this header is empty. Return "" if the request
    is same-origin or has no such header."""
    origin = request.headers.get("Origin")
    return "" if origin is None or urlsplit(origin).netloc == request.host else origin or "null"
