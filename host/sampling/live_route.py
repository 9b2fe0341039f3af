"""The HTTP routes by which the pages of ComfyUI find running walks (steered videos) and connect to them."""

import asyncio
import time
from functools import partial
from typing import Any

from ...errors import InputError

ADDRESS = "/lingbot_world/live"
MAX_MESSAGE_BYTES = 1 << 17
"""The maximum size of a client's message, enough for the longest prompt even if each character is escaped."""
MAX_VIEWS = 16
VIEW_TIMEOUT = 10.0
"""The seconds that a connection waits for the node's view. ComfyUI announces a node before its view exists."""
views: dict[str, Any] = {}
"""The `LiveView` of each running Live node, by node id."""


def register(server) -> None:
    """Add the routes of live views to `server`, ComfyUI's PromptServer."""
    from aiohttp import web

    connected = []

    @server.routes.get(ADDRESS + "/running")
    async def running(request: web.Request) -> web.Response:
        """Return the ids of the running Live nodes as JSON. A page other than the one that queued the prompt gets an
        empty list."""
        is_own = server.client_id is not None and request.query.get("client") == server.client_id
        return web.json_response(sorted(views) if is_own else [])

    @server.routes.get(ADDRESS + "/walks")
    async def walks(_request: web.Request) -> web.Response:
        return web.json_response({"walks": len(views)})

    @server.routes.get(ADDRESS)
    async def connect(request: web.Request) -> web.StreamResponse:
        from ...live.wire.codec import JSON  # imported when a node has begun: they import the model
        from ...live.wire.connection import foreign_origin, serve

        if foreign_origin(request):
            return web.Response(status=403, text="a page of another address may not walk here\n")
        if len(connected) >= MAX_VIEWS:
            return web.Response(status=503, text=f"{MAX_VIEWS} views are open; close one\n")
        connected.append(request)
        try:
            return await serve(request, partial(_serve_client, request.query.get("node", "")), JSON, MAX_MESSAGE_BYTES)
        finally:
            connected.remove(request)


async def _serve_client(node: str, socket, init, inbox) -> None:
    ends = time.monotonic() + VIEW_TIMEOUT
    while node not in views and time.monotonic() < ends and not inbox.ended.is_set():
        await asyncio.sleep(0.05)
    if node not in views:
        raise InputError("no walk runs on this node: press Run")
    await views[node].serve_client(socket, init, inbox)
