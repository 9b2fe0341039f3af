"""The HTTP routes by which ComfyUI's page draws a camera path and lists warnings about it."""

import asyncio
import io
from typing import Any

from ...camera.advice import warnings
from ...camera.moves.editor import path_from_editor
from ...camera.path import CameraPath
from ...camera.preview import render_preview
from ...errors import CameraError, LingBotError
from ..prompt.queue import PromptValues, UnknownError

ADDRESS, WARNINGS = "/lingbot_world/camera_preview", "/lingbot_world/camera_warnings"
MOST_FRAMES = 10_001
WIDTHS, HEIGHTS = (400, 4096), (250, 4096)
"""The ranges (smallest, largest) of a drawing's width and height, in pixels."""


def register(server) -> None:
    """Add to ComfyUI's PromptServer the routes that draw a camera path and list warnings about a path."""
    from aiohttp import web

    @server.routes.post(ADDRESS)
    async def draw(request: web.Request) -> web.Response:
        try:
            image = await asyncio.to_thread(drawing_of, await request.json())
        except UnknownError:
            return web.Response(status=204)
        except (LingBotError, OSError) as error:
            return web.json_response({"error": str(error)})
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            return web.json_response(
                {"error": f"expected a preview node and the nodes before it: {error!r}"}, status=400
            )
        return web.Response(body=image, content_type="image/png")

    @server.routes.post(WARNINGS)
    async def warn(request: web.Request) -> web.Response:
        try:
            path = await asyncio.to_thread(path_from_editor, await request.json())
            found = await asyncio.to_thread(warnings, path, len(path))
        except (CameraError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({"warnings": found})


def drawing_of(request: dict[str, Any]) -> bytes:
    """Return a PNG of the preview node's camera path. Raise UnknownError if the path is known only during a run."""
    prompt = request["prompt"]
    inputs, values = prompt[request["node"]]["inputs"], PromptValues(prompt)
    if any(values.evaluate(node["inputs"].get("frames", 0)) > MOST_FRAMES for node in prompt.values()):
        raise CameraError(f"frames: at most {MOST_FRAMES}")
    path = values.evaluate(inputs["camera"])
    if not isinstance(path, CameraPath):
        raise UnknownError
    size = _within(inputs["width"], WIDTHS), _within(inputs["height"], HEIGHTS)
    stream = io.BytesIO()
    frames, light = int(values.evaluate(inputs["frames"])) or len(path), bool(request.get("light"))
    render_preview(path, None, frames, size, light).save(stream, "PNG")
    return stream.getvalue()


def _within(number: Any, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(int(number), bounds[1]))
