"""The shipped workflows as prompts to change and queue, at toy size."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

WORKFLOWS = Path(__file__).parent.parent / "workflows"
CANVAS_FILES = {
    json.loads(path.read_text(encoding="utf-8"))["extra"]["lingbot_world_api"]: path
    for path in sorted(WORKFLOWS.glob("*.json"))
}
"""The canvas files, which are called what the template browser shows, by the names of their API forms."""
NAMES = list(CANVAS_FILES)
PACKAGE = "lingbot-world-base-cam-nf4"
"""The package that the workflows want."""
CANVAS_VALUES = ("randomize", "fixed", "image")  # of the widgets that the canvas adds to seeds and uploads
TOY_WIDTH, TOY_HEIGHT, TOY_FRAMES = 80, 48, 9  # about as wide as real videos: previews take their shape
TOY_STEPS = 4  # of which one is the high-noise expert's
EMPTY_PATH = json.dumps(
    {
        "version": 1,
        "frames": TOY_FRAMES,
        "fps": 16,
        "fov_deg": 79.0,
        "ease": "linear",
        "loop": False,
        "keyframes": [
            {"frame": frame, "position": [0, 0, frame / 4], "quaternion": [0, 0, 0, 1]} for frame in (0, TOY_FRAMES - 1)
        ],
    }
)
"""What the camera editor holds: forward, at toy length."""
TOY_SIZES = dict.fromkeys(("go_on", "larger"), (2 * TOY_WIDTH, 2 * TOY_HEIGHT))  # of those that enlarge
TOY_CHUNK = 13  # frames that a model with chunks of four latent frames makes at least
TOY_LENGTHS = {
    "fast_long": TOY_FRAMES + 2 * 12,
    "go_on": 5 + TOY_FRAMES - 1,
    "larger": 2 * TOY_FRAMES - 1,
    "real_time": TOY_CHUNK,
}
"""Frames, where they are not TOY_FRAMES."""
TOY_FPS = {"larger": 32}  # else 16


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

    def without(self, kind: str) -> ToyPrompt:
        """A copy that lacks the first node of this class, an output; what only that one asked for is not made."""
        return ToyPrompt({key: node for key, node in self.items() if key != self.node_id(kind)})

    def link(self, kind: str, slot: int = 0) -> list:
        return [self.node_id(kind), slot]


def shipped(name: str) -> ToyPrompt:
    """A shipped workflow in API format."""
    return ToyPrompt(json.loads((WORKFLOWS / "api" / f"{name}.json").read_text(encoding="utf-8")))


def canvas_file(name: str) -> dict:
    """The same in the canvas's format."""
    return json.loads(CANVAS_FILES[name].read_text(encoding="utf-8"))


def canvas_nodes(ui: dict) -> list[tuple[str, dict]]:
    """Nodes of a canvas file by their ids in the API form; those of a subgraph in the place of the node that it is."""
    inside = {each["id"]: each["nodes"] for each in ui.get("definitions", {}).get("subgraphs", [])}
    return [
        (key, node)
        for outer in ui["nodes"]
        for key, node in [(f"{outer['id']}:{node['id']}", node) for node in inside.get(outer["type"], [])]
        or [(str(outer["id"]), outer)]
    ]


def toy_prompt() -> ToyPrompt:
    """The toy workflow at toy size with one output node, its video: where another can run, ComfyUI does not refuse the
    prompt."""
    prompt = shipped("toy").set("LingBotWorldPrepareImage", width=TOY_WIDTH, height=TOY_HEIGHT)
    prompt = prompt.set("LingBotWorldLoadPoses", frames=TOY_FRAMES).set("LingBotWorldSampler", steps=4)
    prompt[prompt.node_id("LingBotWorldToyPackage")] = {"class_type": "LoadImage", "inputs": {"image": "example.png"}}
    del prompt[prompt.node_id("LingBotWorldCameraPreview")]
    return prompt


def fresh_toy(**changes) -> ToyPrompt:
    """The same with these inputs of the sampler changed, and a seed of its own: no test is answered from another's
    cache."""
    return toy_prompt().set("LingBotWorldSampler", seed=random.randrange(2**32), **changes)


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
        if node["class_type"] == "LingBotWorldLive":
            inputs |= {"wait": 1, "walked_by": "the recorded path"}  # the canvas opens the view, and nobody steers
        for length in ("frames", "length"):
            if inputs.get(length) in (33, 81, 321):
                inputs[length] = TOY_FRAMES
            if inputs.get(length) == 157:
                inputs[length] = TOY_CHUNK
        if isinstance(inputs.get("path"), str):
            inputs["path"] = short_flight(inputs["path"])
        if inputs.get("steps") == 40:
            inputs["steps"] = TOY_STEPS
        if node["class_type"] == "PrimitiveInt" and inputs["value"] == 40:
            inputs["value"] = TOY_STEPS
    return prompt


def as_toy_canvas(name: str) -> dict:
    """The same in the canvas's format."""
    ui, prompt = canvas_file(name), as_toy(name)
    for key, node in canvas_nodes(ui):
        if toy := prompt.get(key):
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
