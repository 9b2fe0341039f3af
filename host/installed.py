"""Registration of this node pack in ComfyUI: a check for a second copy, workflow templates, and scripts."""

import inspect
import json
import logging
from pathlib import Path
from urllib.parse import quote

from ..version import __version__
from .node_classes import node_classes, script_folders

PREFIX = "LingBotWorld"
"""The prefix of all node ids of this pack. No other pack uses it."""
HERE = Path(__file__).parent.parent
WEB, ENTRY = HERE / "web", "js/extension.js"
TEMPLATES = ("/workflow_templates", "/api/workflow_templates")
EXTENSIONS = ("/extensions", "/api/extensions")


def disable_second_copy() -> bool:
    """Return True if another copy of the pack is already loaded. In that case log both folders, and unregister this
    copy's scripts from ComfyUI."""
    loaded = [inspect.getfile(node) for name, node in node_classes().items() if name.startswith(PREFIX)]
    packs = (folder.parent for file in loaded for folder in Path(file).parents if folder.name == "nodes")
    first = next(packs, HERE)
    if first == HERE:
        return False
    folders = script_folders()
    for name in [name for name, folder in folders.items() if Path(folder).parent == HERE]:
        del folders[name]
    logging.warning(
        "LingBot-World is installed twice: %s works, %s (version %s) is not used; delete one of them, or move it out "
        "of custom_nodes, and restart ComfyUI",
        first,
        HERE,
        __version__,
    )
    return True


def register(server) -> None:
    """Make ComfyUI's PromptServer sort the workflow templates, and serve the pack's scripts at URLs with its version,
    so that browsers reload them after an update."""
    from aiohttp import web

    scripts = {f"/extensions/{quote(name)}/" for name, folder in script_folders().items() if Path(folder) == WEB}
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
