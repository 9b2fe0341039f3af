"""The shipped toy workflow as a prompt to change and queue."""

from __future__ import annotations

import copy
import json
from pathlib import Path

TOY = Path(__file__).parent.parent / "workflows" / "api" / "toy.json"
TOY_WIDTH, TOY_HEIGHT, TOY_FRAMES = 96, 64, 9


class ToyPrompt(dict):
    """An API prompt whose nodes can be found by class."""

    def node_id(self, kind: str) -> str:
        return next(key for key, node in self.items() if node["class_type"] == kind)

    def set(self, kind: str, **values) -> ToyPrompt:
        """A copy with these inputs of the first node of this class changed."""
        changed = ToyPrompt(copy.deepcopy(dict(self)))
        changed[changed.node_id(kind)]["inputs"].update(values)
        return changed

    def add(self, key: str, kind: str, **inputs) -> ToyPrompt:
        """A copy with one more node."""
        changed = ToyPrompt(copy.deepcopy(dict(self)))
        changed[key] = {"class_type": kind, "inputs": inputs, "_meta": {"title": kind}}
        return changed

    def link(self, kind: str, slot: int = 0) -> list:
        return [self.node_id(kind), slot]


def toy_prompt() -> ToyPrompt:
    return ToyPrompt(json.loads(TOY.read_text(encoding="utf-8")))
