"""The prompt that ComfyUI is validating or running, and the values in it that are known before it runs: numbers, and
camera paths that depend on values and files alone.

ComfyUI passes only a node's own values to its validation. So an `on_prompt` handler, which ComfyUI's server calls with
every prompt before it validates the prompt in the same task, stores the whole prompt in a context variable."""

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
"""The nodes that compute a path in milliseconds."""
NUMBERS = ("PrimitiveInt", "PrimitiveFloat")
IMAGES = ("image",)
"""The inputs of camera makers that do not affect the path."""
Prompt = Mapping[str, Mapping[str, Any]]
"""The nodes by id, each with its `class_type` and its `inputs`, as ComfyUI's queue takes them."""
PRESET = "LingBotWorldCameraPreset"
WORKFLOW_OF = "/lingbot_world/workflow_of"
_queued: ContextVar[Prompt] = ContextVar("lingbot_world_queued_prompt", default={})  # noqa: B039, never written to


def register(server) -> None:
    """Add a handler that stores every queued prompt, and the route WORKFLOW_OF, to `server`, ComfyUI's PromptServer."""
    from aiohttp import web

    def keep(request: dict) -> dict:
        """Store the prompt. The seed of every camera without shake, which has no effect, is set to 0: a canvas draws a
        new seed for each run, for which ComfyUI would run all nodes after the camera again."""
        prompt = request.get("prompt") or {}
        for node in prompt.values():
            inputs = node.get("inputs") if isinstance(node, dict) and node.get("class_type") == PRESET else None
            if isinstance(inputs, dict) and inputs.get("shake") == 0 and not is_link(inputs.get("seed")):
                inputs["seed"] = 0
        _queued.set(prompt)
        return request

    @server.routes.get(WORKFLOW_OF)
    async def workflow_of(request: web.Request) -> web.Response:
        """Return as JSON the id of the canvas's workflow that a run belongs to; null if a client sent none."""
        run = request.query.get("prompt", "")
        found: Any = next((item[3] for item in _items(run) if item[1] == run), None)
        for name in ("extra_pnginfo", "workflow", "id"):
            found = found.get(name) if isinstance(found, dict) else None
        return web.json_response(found if isinstance(found, str) else None)

    server.add_on_prompt_handler(keep)


def known_inputs() -> Mapping[str, Any]:
    """Return the inputs of the node that ComfyUI is validating that are values, not links; an empty mapping outside a
    validation."""
    try:
        prompt, node = node_in_question()
    except UnknownError:
        return {}
    return {name: value for name, value in prompt[node]["inputs"].items() if not is_link(value)}


def kind_of(node: str) -> str:
    """Return the class of a node of the running prompt, or "Node" and its id if no prompt has the node."""
    return next((prompt[node]["class_type"] for prompt in _running() if node in prompt), f"Node {node}")


def loras_of(node: str | None) -> list[str]:
    """Return the file names among the inputs of a node of the running prompt, if its class has LoRA in its name."""
    found = next((prompt[node] for prompt in _running() if node in prompt), None)
    if found is None or "lora" not in found["class_type"].lower():
        return []
    return [value for value in found["inputs"].values() if isinstance(value, str) and "." in value]


def running_prompt() -> tuple[Prompt, str]:
    """Return the prompt, and the id of the node that ComfyUI is running. Raises UnknownError outside of a prompt."""
    node = running_node()
    found = next((prompt for prompt in _running() if node in prompt), None)
    if node is None or found is None:
        raise UnknownError
    return found, node


def _running() -> list[Prompt]:
    return [item[2] for item in _items()]


def _items(run: str | None = None) -> list[tuple]:
    """Return ComfyUI's queue items (number, id, prompt, extra data) of the current runs, and of `run` if it is over."""
    from server import PromptServer

    queue = getattr(getattr(PromptServer, "instance", None), "prompt_queue", None)
    if queue is None:
        return []
    over = queue.get_history(run, map_function=lambda record: record["prompt"]) if run else {}
    return [*queue.get_current_queue_volatile()[0], *over.values()]


def node_in_question() -> tuple[Prompt, str]:
    """Return the prompt, and the id of the node that ComfyUI is validating. Raises UnknownError outside a
    validation."""
    context = get_executing_context()
    if context is None or context.node_id not in _queued.get():
        raise UnknownError
    return _queued.get(), context.node_id


class UnknownError(Exception):
    """A value that is known only when the prompt runs."""


class PromptValues:
    """An evaluator of a prompt's inputs before it runs. Each node is evaluated once, without warnings and notes."""

    def __init__(self, prompt: Prompt):
        self._prompt = prompt
        self._made: dict[str, tuple | None] = {}

    def of(self, value: Any) -> Any:
        """Return an input's value. If `value` is a link, evaluate the linked node, whose type must be in NUMBERS or
        CAMERA_MAKERS.

        Raises UnknownError for a link to any other node, and the error of an evaluated node."""
        if not is_link(value):
            return value
        node, slot = value
        if node not in self._made:
            self._made[node] = None  # unknown for now, also for a node that depends on itself
            self._made[node] = self._make(self._prompt[node]["class_type"], self._prompt[node]["inputs"])
        made = self._made[node]
        if made is None:
            raise UnknownError
        return made[slot]

    def _make(self, kind: str, inputs: Mapping[str, Any]) -> tuple:
        if kind not in (*NUMBERS, *CAMERA_MAKERS):
            raise UnknownError
        made_of = {name: self.of(value) for name, value in inputs.items() if name not in IMAGES}
        if kind in NUMBERS:
            return (made_of["value"],)
        maker = import_module("nodes").NODE_CLASS_MAPPINGS[kind]  # ComfyUI's `nodes`
        with quiet():
            return maker.execute(**_nested(made_of)).args


def is_link(value: Any) -> bool:
    """Return whether an input's value is another node's id and the index of its output."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _nested(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with the members of a list grouped as ComfyUI passes them to a node: `cameras.camera0` becomes
    `cameras["camera0"]`."""
    made: dict[str, Any] = {}
    for name, value in inputs.items():
        group, _, member = name.rpartition(".")
        if group:
            made.setdefault(group, {})[member] = value
        else:
            made[name] = value
    return made
