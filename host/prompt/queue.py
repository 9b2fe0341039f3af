"""The prompt that ComfyUI is validating or running, and what its nodes will make where that is known before it runs:
numbers, and camera paths that depend on values and files alone.

ComfyUI gives a node's validation that node's own values only, and repeats a message for each of them. So the prompt is
kept while ComfyUI looks at it: its server hands every prompt to `on_prompt` handlers first, and validates it in the
same task.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from comfy_execution.utils import get_executing_context

from .notice import quiet, running_node

CAMERA_MAKERS = tuple(
    f"LingBotWorld{name}"
    for name in ("LoadPoses", "CameraImport", "CameraPreset", "CameraKeys", "CameraChain", "CameraEditor")
)
"""Nodes that compute a path in milliseconds."""
NUMBERS = ("PrimitiveInt", "PrimitiveFloat")
PICTURES = ("image",)
"""Inputs of camera makers that change nothing of the path."""

Prompt = Mapping[str, Mapping[str, Any]]
"""Nodes by id, each with its `class_type` and its `inputs`, as ComfyUI's queue takes them."""
PRESET = "LingBotWorldCameraPreset"
WORKFLOW_OF = "/lingbot_world/workflow_of"
_queued: ContextVar[Prompt] = ContextVar("lingbot_world_queued_prompt", default={})  # noqa: B039, never written to


def register(server) -> None:
    """`server` is ComfyUI's PromptServer."""
    from aiohttp import web

    def keep(request: dict) -> dict:
        """The seed of a camera without shake changes nothing, and becomes 0. A canvas draws a new seed for each run,
        and ComfyUI would make everything behind the camera again."""
        prompt = request.get("prompt") or {}
        for node in prompt.values():
            inputs = node.get("inputs") if isinstance(node, dict) and node.get("class_type") == PRESET else None
            if isinstance(inputs, dict) and inputs.get("shake") == 0 and not is_link(inputs.get("seed")):
                inputs["seed"] = 0
        _queued.set(prompt)
        return request

    @server.routes.get(WORKFLOW_OF)
    async def workflow_of(request: web.Request) -> web.Response:
        """As JSON, the id of the canvas's workflow that a run is of; null for a run that none is known of."""
        return web.json_response(_workflow_of(request.query.get("prompt", "")))

    server.add_on_prompt_handler(keep)


def known_inputs() -> Mapping[str, Any]:
    """Those inputs of the node that ComfyUI is validating which are values, not links; none outside a validation."""
    try:
        prompt, node = node_in_question()
    except UnknownError:
        return {}
    return {name: value for name, value in prompt[node]["inputs"].items() if not is_link(value)}


def kind_of(node: str) -> str:
    """The class of a node of the prompt that is running, or its number where that is not known."""
    kinds = [prompt[node]["class_type"] for prompt in _running() if node in prompt]
    return kinds[0] if kinds else f"Node {node}"


def loras_of(node: str | None) -> list[str]:
    """The files that a node of the prompt that is running was given, if it is one for LoRAs."""
    found = next((prompt[node] for prompt in _running() if node in prompt), None)
    if found is None or "lora" not in found["class_type"].lower():
        return []
    return [value for value in found["inputs"].values() if isinstance(value, str) and "." in value]


def running_prompt() -> tuple[Prompt, str]:
    """The prompt, and the id of the node that ComfyUI is running. Raises UnknownError outside of a prompt."""
    node = running_node()
    found = next((prompt for prompt in _running() if node in prompt), None)
    if node is None or found is None:
        raise UnknownError
    return found, node


def _running() -> list[Prompt]:
    return [item[2] for item in _items()]


def _items(run: str | None = None) -> list[tuple]:
    """What ComfyUI's queue has of the runs that go on, and of one that may be over: number, id, prompt, extra data."""
    from server import PromptServer

    queue = getattr(getattr(PromptServer, "instance", None), "prompt_queue", None)
    if queue is None:
        return []
    over = queue.get_history(run, map_function=lambda told: told["prompt"]) if run else {}
    return [*queue.get_current_queue_volatile()[0], *over.values()]


def _workflow_of(run: str) -> str | None:
    """The id of a run's workflow, as the canvas sent it; None where a client sent none, or something else."""
    told: Any = next((item[3] for item in _items(run) if item[1] == run), None)
    for name in ("extra_pnginfo", "workflow", "id"):
        told = told.get(name) if isinstance(told, dict) else None
    return told if isinstance(told, str) else None


def node_in_question() -> tuple[Prompt, str]:
    """The prompt, and the id of the node that ComfyUI is validating. Raises UnknownError outside a validation."""
    context = get_executing_context()
    if context is None or context.node_id not in _queued.get():
        raise UnknownError
    return _queued.get(), context.node_id


class UnknownError(Exception):
    """A value that is known only when the prompt runs."""


class PromptValues:
    """The values of a prompt's inputs. A node is asked once, and shows nothing on the way."""

    def __init__(self, prompt: Prompt):
        self._prompt = prompt
        self._made: dict[str, tuple | None] = {}

    def of(self, value: Any) -> Any:
        """An input's value. A link is followed to a number, or to a node that makes camera paths.

        Raises UnknownError where it is known only when the prompt runs, and what that node raises."""
        if not is_link(value):
            return value
        node, slot = value
        if node not in self._made:
            self._made[node] = None  # not known: what a node that depends on itself finds
            self._made[node] = self._make(self._prompt[node]["class_type"], self._prompt[node]["inputs"])
        made = self._made[node]
        if made is None:
            raise UnknownError
        return made[slot]

    def _make(self, kind: str, inputs: Mapping[str, Any]) -> tuple:
        if kind not in (*NUMBERS, *CAMERA_MAKERS):
            raise UnknownError
        made_of = {name: self.of(value) for name, value in inputs.items() if name not in PICTURES}
        if kind in NUMBERS:
            return (made_of["value"],)
        maker = import_module("nodes").NODE_CLASS_MAPPINGS[kind]  # ComfyUI's `nodes`
        with quiet():
            return maker.execute(**_nested(made_of)).args


def is_link(value: Any) -> bool:
    """Whether an input's value is another node's id and the place of its output."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _nested(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a list, `cameras.camera0`, as ComfyUI hands them to a node."""
    made: dict[str, Any] = {}
    for name, value in inputs.items():
        group, _, member = name.rpartition(".")
        if group:
            made.setdefault(group, {})[member] = value
        else:
            made[name] = value
    return made
