"""Workflows that earlier versions shipped: ComfyUI runs their prompts, and the canvas finds a field for each value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from comfy_server import ComfyServer
from toy_prompt import TOY_FRAMES, TOY_HEIGHT, TOY_WIDTH

pytestmark = pytest.mark.host

EARLIER = Path(__file__).parents[2] / "data" / "earlier"
FIELDS = {"INT": int, "FLOAT": (int, float), "STRING": str, "BOOLEAN": bool}
ADDED = ("fixed", "increment", "decrement", "randomize")
"""The values of the field that the canvas adds after a seed."""


def read(name: str) -> dict:
    text = (EARLIER / f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text.replace("lingbot-world-base-cam-nf4/", "toy/"))


@pytest.mark.parametrize("name", ["0.1-toy-api", "0.2-fast-api", "0.3-toy-api"])
def test_a_prompt_of_an_earlier_version_makes_its_video(comfy_server: ComfyServer, name):
    prompt = read(name)
    for node in prompt.values():
        inputs = node["inputs"]
        if node["class_type"] == "LingBotWorldPrepareImage":
            inputs |= {"size": "width and height", "width": TOY_WIDTH, "height": TOY_HEIGHT}
        for key, small in (("frames", TOY_FRAMES), ("steps", 2)):
            if isinstance(inputs.get(key), int):
                inputs[key] = small
    run = comfy_server.queue(prompt)
    (video,) = [file for file in run.files(comfy_server.base / "output") if file.suffix == ".mp4"]
    assert video.stat().st_size > 500


def fields(node: dict) -> list[tuple[str, list | str]]:
    """Return name and type of each field that the canvas draws, in order; a list has the options."""
    found: list[tuple[str, list | str]] = []
    for kind in ("required", "optional"):
        for name, (sort, *rest) in node["input"].get(kind, {}).items():
            more = rest[0] if rest else {}
            if isinstance(sort, list) or sort == "COMBO" or sort in FIELDS:
                found.append((name, more.get("options", sort) if sort == "COMBO" else sort))
            if more.get("control_after_generate"):
                found.append(("control_after_generate", list(ADDED)))
    return found


@pytest.mark.parametrize("name", ["0.1-toy-canvas", "0.2-fast-canvas"])
def test_each_value_of_an_earlier_canvas_file_fits_its_field(comfy_server: ComfyServer, name):
    """The canvas assigns values by their order, so a field may only be added at the end."""
    known = comfy_server.object_info()
    ours = [node for node in read(name)["nodes"] if node["type"].startswith("LingBotWorld")]
    assert len(ours) > 5
    for node in ours:
        now = fields(known[node["type"]])
        assert len(node["widgets_values"]) <= len(now), node["type"]
        for value, (field, sort) in zip(node["widgets_values"], now, strict=False):
            fits = isinstance(value, str) if isinstance(sort, list) else isinstance(value, FIELDS[sort])
            assert fits, f"{node['type']}.{field}: {value!r} of {name}"
        assert {slot["name"] for slot in node["inputs"]} <= {
            key for kind in ("required", "optional") for key in known[node["type"]]["input"].get(kind, {})
        }
        assert len(node.get("outputs", [])) <= len(known[node["type"]]["output"])
