"""The HTTP routes by which the pages of ComfyUI find running walks (steered videos) and connect to them."""

import asyncio
import time
from functools import partial
from typing import Any

from ...errors import InputError

ADDRESS = "/lingbot_world/live"
MOST_BYTES = 1 << 17
"""The most bytes of a message, enough for the longest prompt in escape sequences."""
MOST_VIEWS = 16
PATIENCE = 10.0
"""The most seconds that a new connection waits for its node's view, which ComfyUI announces before it exists."""
views: dict[str, Any] = {}
"""The `LiveView` of each running Live node, by node id."""


def register(server) -> None:
    """Add the routes of live views to `server`, ComfyUI's PromptServer."""
    from aiohttp import web

    connected = []

    @server.routes.get(ADDRESS + "/running")
    async def running(request: web.Request) -> web.Response:
        """Return as JSON the running Live nodes' ids, but none to a page that did not queue the prompt."""
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
        if len(connected) >= MOST_VIEWS:
            return web.Response(status=503, text=f"{MOST_VIEWS} views are open; close one\n")
        connected.append(request)
        try:
            return await serve(request, partial(_serve_client, request.query.get("node", "")), JSON, MOST_BYTES)
        finally:
            connected.remove(request)


async def _serve_client(node: str, socket, init, inbox) -> None:
    ends = time.monotonic() + PATIENCE
    while node not in views and time.monotonic() < ends and not inbox.ended.is_set():
        await asyncio.sleep(0.05)
    if node not in views:
        raise InputError("no walk runs on this node: press Run")
    await views[node].serve_client(socket, init, inbox)
