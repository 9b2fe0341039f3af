"""The pack's place among ComfyUI's custom nodes: the check for a second copy of the pack, the order of its
templates, and the address of its scripts.

Of two copies, the one that loads first works and the other registers nothing. Otherwise ComfyUI would take some nodes
from one copy, and routes and the canvas's scripts from both."""

import inspect
import json
import logging
from pathlib import Path
from urllib.parse import quote

from ..version import __version__

PREFIX = "LingBotWorld"
"""The prefix of this pack's node ids, which no other pack uses."""
HERE = Path(__file__).parent.parent
WEB, ENTRY = HERE / "web", "js/extension.js"
TEMPLATES = ("/workflow_templates", "/api/workflow_templates")
EXTENSIONS = ("/extensions", "/api/extensions")


def gives_way() -> bool:
    """Return whether another copy of the pack has loaded. If so, log both copies and the remedy, and remove this copy's
    scripts from the canvas."""
    from nodes import EXTENSION_WEB_DIRS, NODE_CLASS_MAPPINGS

    theirs = (node for name, node in NODE_CLASS_MAPPINGS.items() if name.startswith(PREFIX))
    first = next((_pack_of(inspect.getfile(node)) for node in theirs), HERE)
    if first == HERE:
        return False
    for name in [name for name, folder in EXTENSION_WEB_DIRS.items() if Path(folder).parent == HERE]:
        del EXTENSION_WEB_DIRS[name]
    logging.warning(
        "LingBot-World is installed twice: %s works, %s (version %s) is not used; delete one of them, or move it out "
        "of custom_nodes, and restart ComfyUI",
        first,
        HERE,
        __version__,
    )
    return True


def _pack_of(file: str) -> Path:
    """Return the folder of the pack that defines a node class in `file`."""
    return next(folder.parent for folder in Path(file).parents if folder.name == "nodes")


def register(server) -> None:
    """Sort the pack's templates by their numbers, because ComfyUI lists them in the file system's order, and give the
    canvas one script whose address holds the pack's version. `server` is ComfyUI's PromptServer.

    The script imports all others relative to its own address, so that no file of an earlier version comes from a
    browser's cache."""
    from aiohttp import web

    from nodes import EXTENSION_WEB_DIRS

    scripts = {f"/extensions/{quote(name)}/" for name, folder in EXTENSION_WEB_DIRS.items() if Path(folder) == WEB}
    versioned = f"/extensions/{quote(HERE.name)}@{__version__}/"

    @web.middleware
    async def list_ours(request: web.Request, handler) -> web.StreamResponse:
        answer = await handler(request)
        if request.path not in (*TEMPLATES, *EXTENSIONS) or answer.status != web.HTTPOk.status_code:
            return answer
        listed = json.loads(answer.body)
        if request.path in TEMPLATES:
            listed.get(HERE.name, []).sort()
        elif scripts:
            listed = [address for address in listed if not address.startswith(tuple(scripts))] + [versioned + ENTRY]
        return web.json_response(listed)

    @server.routes.get(versioned + "{path:.+}")
    async def send(request: web.Request) -> web.StreamResponse:
        file = (WEB / request.match_info["path"]).resolve()
        if not (file.is_relative_to(WEB.resolve()) and file.is_file()):
            return web.Response(status=404)
        return web.FileResponse(file, headers={"Cache-Control": "no-cache"})

    server.app.middlewares.append(list_ours)
