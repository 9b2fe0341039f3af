"""The web application of the live server: page, endpoint in SGLang's realtime video protocol, and access control."""

import asyncio
import io
import secrets
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from aiohttp import web

from ...errors import LingBotError
from ...live.wire.codec import MSGPACK
from ...live.wire.connection import foreign_origin, serve
from ...live.wire.protocol import MOST_BYTES
from .pictures import Example, examples
from .saved_walks import list_walks
from .walk_server import WalkServer

ENDPOINT = "/v1/realtime_video/generate"
MAX_CONNECTIONS = 32
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src blob:; "
    "connect-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
TYPES = {".html": "text/html", ".mjs": "text/javascript", ".css": "text/css", ".json": "application/json"}


@dataclass
class Site:
    """A live server's WalkServer and its access rules.

    token: the access token that every client must send; empty if only this machine may connect.
    origins: other web pages that may connect, such as http://localhost:8000.
    """

    server: WalkServer
    token: str = ""
    origins: tuple[str, ...] = ()
    connections: int = field(default=0, init=False)

    def refusal(self, request: web.Request) -> str:
        """Return why a request is rejected, or "" if it is allowed."""
        given = request.query.get("token", request.cookies.get(_cookie(request), ""))
        if self.token and not secrets.compare_digest(given.encode(), self.token.encode()):
            return "the token in the address is missing or wrong; open the address that the server printed"
        host = urlsplit(f"//{request.host}").hostname or ""
        named = {"127.0.0.1", "localhost", "::1", *(urlsplit(origin).hostname for origin in self.origins)}
        if not self.token and host not in named:  # a foreign name that resolves to this machine (DNS rebinding)
            return f"this server is 127.0.0.1, not {host[:60]}; behind a proxy start it with --allow_origin https://{host[:60]}"
        origin = foreign_origin(request)
        if origin and origin not in self.origins:
            return f"a page of {origin[:60]} may not use this server; start it with --allow_origin {origin[:60]}"
        return ""


def make_app(site: Site) -> web.Application:
    """Return the aiohttp application of the live server. Its shutdown ends the current walk."""
    app = web.Application(client_max_size=1 << 16, middlewares=[_guard(site)])
    loaded = site.server.loaded
    model = {
        "id": loaded.plan.checkpoint.name,
        "object": "model",
        "root": loaded.plan.spec.release,
        "pipeline_class": "LingBotWorld",
        "model_path": loaded.plan.checkpoint.name,
    }
    app.router.add_get("/", _page("index.html"))
    for entry in files("lingbot_world").joinpath("web", "live").iterdir():
        if entry.is_file():
            app.router.add_get(f"/live/{entry.name}", _page(entry.name))
    app.router.add_get("/v1/models", _json({"object": "list", "data": [model]}))
    app.router.add_get("/models", _json(model))
    height, width = loaded.start.frame.shape[1:]
    info = {"version": "lingbot-world", "model": model["id"], "width": width, "height": height, "walks": True}
    app.router.add_get("/server_info", _json(info))
    offered = examples(loaded)
    app.router.add_get("/examples", _json([example.facts() for example in offered]))
    app.router.add_get("/example/{number:[0-9]{1,2}}", partial(_example, offered))
    app.router.add_get("/walks", partial(_walks, site))
    app.router.add_get("/walk/{what:state|path|video}", partial(_download, site))
    app.router.add_get(ENDPOINT, partial(_connect, site))

    async def end(_app: web.Application) -> None:
        await site.server.close()

    app.on_shutdown.append(end)
    return app


def _guard(site: Site) -> Any:
    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        reason = site.refusal(request)
        if reason:
            return web.Response(status=403, text=reason + "\n", headers=HEADERS)
        response = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
            if site.token and request.path == "/":  # the page's own requests have no token in their address
                response.set_cookie(_cookie(request), site.token, httponly=True, samesite="Strict")
            origin = request.headers.get("Origin")
            if origin in site.origins:
                response.headers["Access-Control-Allow-Origin"] = origin or ""
        return response

    return guard


def _cookie(request: web.Request) -> str:
    """Return the name of the access cookie, with the port, because browsers share cookies between ports."""
    return f"lingbot_world_{request.url.port}"


def _page(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    entry = files("lingbot_world").joinpath("web", "live", name)

    async def page(_request: web.Request) -> web.Response:
        kind = next((kind for end, kind in TYPES.items() if name.endswith(end)), "application/octet-stream")
        return web.Response(body=entry.read_bytes(), content_type=kind)

    return page


async def _example(offered: list[Example], request: web.Request) -> web.Response:
    number = int(request.match_info["number"])
    if number >= len(offered):
        return web.Response(status=404)
    return web.Response(body=offered[number].data, content_type=offered[number].kind)


def _json(value: Any) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def page(_request: web.Request) -> web.Response:
        return web.json_response(value)

    return page


async def _walks(site: Site, _request: web.Request) -> web.Response:
    loop = asyncio.get_running_loop()
    return web.json_response(await loop.run_in_executor(None, list_walks, site.server.folder))


async def _download(site: Site, request: web.Request) -> web.StreamResponse:
    """Respond with the current walk's state, video or camera path, as the address says. The status is 404 without such
    a file, or 409 on failure."""
    visit = site.server.visit
    if visit is None or not secrets.compare_digest(request.query.get("walk", "").encode(), visit.token.encode()):
        return web.Response(status=404, text="this walk has ended; its folder has the files\n")
    what = request.match_info["what"]
    name = {"state": "walk.state", "path": "camera.zip", "video": "walk.mp4"}[what]
    loop = asyncio.get_running_loop()
    try:
        store = visit.session.walk.store
        path = store.folder / name
        if what == "state":
            await loop.run_in_executor(None, lambda: store.state().save(path))
        if what == "path":
            return web.Response(body=_zipped(store.poses(), store.lens), headers=_attached(name))
    except LingBotError as error:
        return web.Response(status=409, text=f"{error}\n")
    if not path.is_file():
        return web.Response(status=404, text="nothing was walked yet\n")
    return web.FileResponse(path, headers=_attached(name))


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _zipped(poses: np.ndarray, lens: np.ndarray) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in (("poses.npy", poses), ("intrinsics.npy", np.tile(lens, (len(poses), 1)))):
            with archive.open(name, "w") as entry:
                np.lib.format.write_array(entry, array)
    return file.getvalue()


async def _connect(site: Site, request: web.Request) -> web.StreamResponse:
    if site.connections >= MAX_CONNECTIONS:
        return web.Response(status=503, text=f"{MAX_CONNECTIONS} connections are open; try again later\n")
    site.connections += 1
    try:
        return await serve(request, site.server.enter, MSGPACK, MOST_BYTES)
    finally:
        site.connections -= 1
