"""What nodes of a prompt will make, where that is known before the prompt runs: numbers, and camera paths that depend
on values and files alone."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .notice import quiet

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
