"""This pack's templates in the order of their numbers: ComfyUI lists them as the file system has them."""

import json

from .copies import HERE

ADDRESSES = ("/workflow_templates", "/api/workflow_templates")


def register(server) -> None:
    """Sorts the pack's part of ComfyUI's own list; `server` is ComfyUI's PromptServer."""
    from aiohttp import web

    @web.middleware
    async def sort(request: web.Request, handler) -> web.StreamResponse:
        answer = await handler(request)
        if request.path not in ADDRESSES or answer.status != web.HTTPOk.status_code:
            return answer
        listed = json.loads(answer.body)
        listed.get(HERE.name, []).sort()
        return web.json_response(listed)

    server.app.middlewares.append(sort)
