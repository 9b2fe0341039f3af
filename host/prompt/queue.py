"""Access to the prompt (ComfyUI's graph of nodes) that ComfyUI is validating or running."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from comfy_execution.utils import get_executing_context

from ..node_classes import node_classes
from .notice import quiet, running_node

CAMERA_MAKERS = tuple(
    f"LingBotWorld{name}"
    for name in ("LoadPoses", "CameraImport", "CameraPreset", "CameraKeys", "CameraChain", "CameraEditor")
)
"""The nodes that make a camera path within milliseconds, so that they can be evaluated before the run."""
NUMBERS = ("PrimitiveInt", "PrimitiveFloat")
IMAGES = ("image",)
"""The names of image inputs of the nodes in CAMERA_MAKERS. These inputs do not affect the camera path, so an evaluation
before the run skips them."""
Prompt = Mapping[str, Mapping[str, Any]]
"""A prompt in ComfyUI's format: a map from each node id to a map with `class_type` and `inputs`."""
PRESET = "LingBotWorldCameraPreset"
WORKFLOW_OF = "/lingbot_world/workflow_of"
_queued: ContextVar[Prompt] = ContextVar("lingbot_world_queued_prompt", default={})  # noqa: B039, never written to


def register(server) -> None:
    """Add to ComfyUI's PromptServer a handler that stores every queued prompt, and the route WORKFLOW_OF."""
    from aiohttp import web

    def store(request: dict) -> dict:
        prompt = request.get("prompt") or {}
        _reset_unused_seeds(prompt)
        _queued.set(prompt)  # the server validates the prompt in the same asyncio task
        return request

    @server.routes.get(WORKFLOW_OF)
    async def workflow_of(request: web.Request) -> web.Response:
        """Return as JSON the workflow id of the prompt with the id in the query's `prompt`, or null."""
        run = request.query.get("prompt", "")
        found: Any = next((item[3] for item in _queue_items(run) if item[1] == run), None)
        for name in ("extra_pnginfo", "workflow", "id"):
            found = found.get(name) if isinstance(found, dict) else None
        return web.json_response(found if isinstance(found, str) else None)

    server.add_on_prompt_handler(store)


def _reset_unused_seeds(prompt: dict[str, Any]) -> None:
    """Set `seed` to 0, in place, in each Camera Preset node without shake. Such a node does not use its seed, so a
    changed seed must not invalidate ComfyUI's cache."""
    for node in prompt.values():
        inputs = node.get("inputs") if isinstance(node, dict) and node.get("class_type") == PRESET else None
        if isinstance(inputs, dict) and inputs.get("shake") == 0 and not is_link(inputs.get("seed")):
            inputs["seed"] = 0


def known_inputs() -> Mapping[str, Any]:
    """Return the input values (not links) of the node being validated. Outside of a validation the result is empty."""
    try:
        prompt, node = validating_prompt()
    except UnknownError:
        return {}
    return {name: value for name, value in prompt[node]["inputs"].items() if not is_link(value)}


def name_of(node: str) -> str:
    """Return a node's name for a message: "EasyCache (node 7)", or "node 7" if no running prompt contains the node."""
    kinds = (f"{prompt[node]['class_type']} (node {node})" for prompt in _running_prompts() if node in prompt)
    return next(kinds, f"node {node}")


def loras_of(node: str | None) -> list[str]:
    """Return the names of the LoRA files that the node with the id `node` loads in the running prompt. The list is
    empty if `node` is None, not a LoRA loader, or not in the prompt."""
    found = next((prompt[node] for prompt in _running_prompts() if node in prompt), None)
    if found is None or "lora" not in found["class_type"].lower():
        return []
    values = [
        value.get("lora") if isinstance(value, dict) and value.get("on", True) else value
        for value in found["inputs"].values()
    ]
    return [value for value in values if isinstance(value, str) and "." in value]


def running_prompt() -> tuple[Prompt, str]:
    """Return the running prompt and the running node's id. Raise UnknownError if no prompt runs in this thread."""
    node = running_node()
    found = next((prompt for prompt in _running_prompts() if node in prompt), None)
    if node is None or found is None:
        raise UnknownError
    return found, node


def _running_prompts() -> list[Prompt]:
    return [item[2] for item in _queue_items()]


def _queue_items(run: str | None = None) -> list[tuple]:
    """Return ComfyUI's running queue items (number, id, prompt, extra data), plus the history's item with id `run`."""
    from server import PromptServer

    queue = getattr(getattr(PromptServer, "instance", None), "prompt_queue", None)
    if queue is None:
        return []
    over = queue.get_history(run, map_function=lambda record: record["prompt"]) if run else {}
    return [*queue.get_current_queue_volatile()[0], *over.values()]


def validating_prompt() -> tuple[Prompt, str]:
    """Return the prompt being validated and its current node's id. Raise UnknownError outside of a validation."""
    context = get_executing_context()
    if context is None or context.node_id not in _queued.get():
        raise UnknownError
    return _queued.get(), context.node_id


class UnknownError(Exception):
    """The error for an input with an unknown value before ComfyUI runs the prompt, and for code that runs outside of
    any prompt."""


class PromptValues:
    """An evaluator of node inputs in a workflow (ComfyUI's prompt) before the run. Warnings are dropped; each node is
    evaluated at most once."""

    def __init__(self, prompt: Prompt):
        self._prompt = prompt
        self._results: dict[str, tuple | None] = {}

    def evaluate(self, value: Any) -> Any:
        """Return an input's value. If `value` is a link, return the linked node's output. Raise UnknownError if this
        output is known only after ComfyUI has run the node."""
        if not is_link(value):
            return value
        node, slot = value
        if node not in self._results:
            self._results[node] = None  # unknown for now, also for a node that depends on itself
            self._results[node] = self._evaluate_node(self._prompt[node]["class_type"], self._prompt[node]["inputs"])
        made = self._results[node]
        if made is None:
            raise UnknownError
        return made[slot]

    def _evaluate_node(self, kind: str, inputs: Mapping[str, Any]) -> tuple:
        if kind not in (*NUMBERS, *CAMERA_MAKERS):
            raise UnknownError
        values = {name: self.evaluate(value) for name, value in inputs.items() if name not in IMAGES}
        if kind in NUMBERS:
            return (values["value"],)
        maker = node_classes()[kind]
        with quiet():
            return maker.execute(**_group_inputs(values)).args


def is_link(value: Any) -> bool:
    """Whether an input's value is a link: a list of another node's id and the index of its output."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _group_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with dotted names grouped as ComfyUI does: `cameras.camera0` becomes `cameras["camera0"]`."""
    made: dict[str, Any] = {}
    for name, value in inputs.items():
        group, _, member = name.rpartition(".")
        if group:
            made.setdefault(group, {})[member] = value
        else:
            made[name] = value
    return made
