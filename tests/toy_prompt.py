"""The shipped workflows as prompts to change and queue, at toy size."""

from __future__ import annotations

import copy
import json
from pathlib import Path

WORKFLOWS = Path(__file__).parent.parent / "workflows"
CANVAS_VALUES = ("randomize", "fixed", "image")  # of the widgets that the canvas adds to seeds and uploads
TOY_WIDTH, TOY_HEIGHT, TOY_FRAMES = 96, 64, 9
TOY_LENGTHS = {"fast_long": TOY_FRAMES + 2 * 12}  # of the workflows whose videos are not of TOY_FRAMES


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


def shipped(name: str) -> ToyPrompt:
    """A shipped workflow in API format."""
    return ToyPrompt(json.loads((WORKFLOWS / "api" / f"{name}.json").read_text(encoding="utf-8")))


def toy_prompt() -> ToyPrompt:
    return shipped("toy")


def as_toy(name: str) -> ToyPrompt:
    """A shipped workflow at toy size. A toy T5 does not go through core's CLIPLoader: ours takes its place."""
    prompt = shipped(name)
    for node in prompt.values():
        inputs = node["inputs"]
        if node["class_type"] == "LingBotWorldPrepareImage":
            inputs |= {"size": "width and height", "width": TOY_WIDTH, "height": TOY_HEIGHT}
        if node["class_type"] == "CLIPLoader":
            node["class_type"] = "LingBotWorldLoadTextEncoder"
            node["inputs"] = {"text_encoder": "toy/models_t5_umt5-xxl-enc-bf16.pth"}
        for length in ("frames", "length"):
            if inputs.get(length) in (81, 321):
                inputs[length] = TOY_FRAMES
        if isinstance(inputs.get("path"), str):
            inputs["path"] = short_flight(inputs["path"])
        if inputs.get("steps") == 40:
            inputs["steps"] = 12
    return prompt


def as_toy_canvas(name: str) -> dict:
    """The same in the canvas's format."""
    ui, prompt = json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8")), as_toy(name)
    for node in ui["nodes"]:
        if toy := prompt.get(str(node["id"])):
            _set_widgets(node, toy["inputs"])
            if node["type"] != toy["class_type"]:
                node["type"], node["widgets_values"] = toy["class_type"], [*toy["inputs"].values(), "auto", "default"]
                node["inputs"] = []
    return ui


def _set_widgets(node: dict, inputs: dict) -> None:
    values = node["widgets_values"]
    places = [place for place, value in enumerate(values) if value not in CANVAS_VALUES]
    names = [slot["name"] for slot in node["inputs"] if "widget" in slot]
    for name, place in zip(names, places, strict=True):
        if not isinstance(inputs.get(name, []), list):
            values[place] = inputs[name]


def short_flight(path: str) -> str:
    state = json.loads(path)
    first, *_, last = state["keyframes"]
    return json.dumps({**state, "frames": TOY_FRAMES, "keyframes": [first, {**last, "frame": TOY_FRAMES - 1}]})
