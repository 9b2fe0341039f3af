"""The prompt that ComfyUI is validating.

ComfyUI gives a node's validation that node's own values only, and repeats a message for each of them. So the prompt is
kept while ComfyUI looks at it: its server hands every prompt to `on_prompt` handlers first, and validates it in the
same task.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from comfy_execution.utils import get_executing_context

from .notice import running_node
from .prompt_values import Prompt, UnknownError, is_link

PRESET = "LingBotWorldCameraPreset"
_queued: ContextVar[Prompt] = ContextVar("lingbot_world_queued_prompt", default={})  # noqa: B039, never written to


def register(server) -> None:
    """`server` is ComfyUI's PromptServer."""

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
    from server import PromptServer

    queue = getattr(getattr(PromptServer, "instance", None), "prompt_queue", None)
    return [] if queue is None else [item[2] for item in queue.get_current_queue_volatile()[0]]


def node_in_question() -> tuple[Prompt, str]:
    """The prompt, and the id of the node that ComfyUI is validating. Raises UnknownError outside a validation."""
    context = get_executing_context()
    if context is None or context.node_id not in _queued.get():
        raise UnknownError
    return _queued.get(), context.node_id
