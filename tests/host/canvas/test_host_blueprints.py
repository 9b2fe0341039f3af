"""The base pipeline as one node: ComfyUI lists it, its node library adds it to a canvas, and there it makes a video."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from browser_runner import run_script
from comfy_server import PACK_NAME, ComfyServer
from toy_prompt import EMPTY_PATH, TOY_FRAMES, TOY_HEIGHT, TOY_WIDTH, shipped

pytestmark = pytest.mark.host

SUBGRAPHS = Path(__file__).parents[3] / "subgraphs"
NAMES = {
    "Camera path to video (LingBot-World)": "LingBotWorldCameraChain",
    "Camera move to video (LingBot-World)": "LingBotWorldCameraPreset",
}
FILES = {"high_noise_expert", "low_noise_expert", "package", "text_encoder", "vae_name"}
TOY = {
    "package": "toy",
    "high_noise_expert": "from the package",
    "low_noise_expert": "from the package",
    "text_encoder": "toy/models_t5_umt5-xxl-enc-bf16.pth",
    "vae_name": "toy/Wan2.1_VAE.pth",
    "prompt": "a castle",
    "size": "width and height",
    "width": TOY_WIDTH,
    "height": TOY_HEIGHT,
    "steps": 2,
    "seed": 11,
}
OF_A_MOVE = {"preset": "pan_left", "frames": TOY_FRAMES}


def blueprint(name: str) -> dict:
    return json.loads((SUBGRAPHS / f"{name}.json").read_text(encoding="utf-8"))


def test_comfyui_lists_them(comfy_server: ComfyServer):
    entries = comfy_server.get("/api/global_subgraphs")
    ours = {entry["name"]: key for key, entry in entries.items() if entry["info"]["node_pack"].endswith(PACK_NAME)}
    assert set(ours) == set(NAMES) == {path.stem for path in SUBGRAPHS.glob("*.json")}
    for name, key in ours.items():
        assert json.loads(comfy_server.get(f"/api/global_subgraphs/{key}")["data"]) == blueprint(name)


@pytest.mark.parametrize("name", NAMES)
def test_its_node_shows_what_is_set_for_a_video(name):
    file = blueprint(name)
    (node,) = file["nodes"]
    (inside,) = file["definitions"]["subgraphs"]
    shown = [slot["name"] for slot in node["inputs"] if "widget" in slot]
    assert set(shown) == {*TOY, *(OF_A_MOVE if "move" in name else ())}
    assert [slot["name"] for slot in node["inputs"]] == [slot["name"] for slot in inside["inputs"]]
    assert [slot["name"] for slot in node["outputs"]] == ["video", "frames"]
    assert (node["type"], inside["name"]) == (inside["id"], name)
    assert all(slot["linkIds"] for slot in inside["inputs"] + inside["outputs"])


@pytest.mark.parametrize("name", NAMES)
def test_its_nodes_and_values_are_those_of_the_main_workflow(name):
    (inside,) = blueprint(name)["definitions"]["subgraphs"]
    main = shipped("camera")
    for node in inside["nodes"]:
        if node["type"] not in NAMES.values():
            assert node["type"] in {each["class_type"] for each in main.values()}
    models = {model["name"]: model["url"] for node in inside["nodes"] for model in node["properties"].get("models", [])}
    assert len(models) == 4


@pytest.fixture(scope="module")
def found(comfy_server: ComfyServer) -> list[dict]:
    """What a browser sees of blueprints that were chosen in the node library, wired up and run: one in each renderer,
    with LINGBOT_TESTS=all each in both."""
    wishes = []
    for vue in (False, True):
        names = list(NAMES) if os.environ.get("LINGBOT_TESTS") == "all" else list(NAMES)[vue::2]
        wished = {name: {**TOY, **(OF_A_MOVE if "move" in name else {})} for name in names}
        wishes.append({"vue": vue, "blueprints": wished, "path": EMPTY_PATH})
    return run_script("check_blueprints.mjs", comfy_server.url, json.dumps(wishes))


@pytest.fixture(scope="module", params=["classic", "vue"])
def reports(request, found: list[dict]) -> dict[str, dict]:
    """Those of one renderer, by the blueprints' names."""
    return {each["title"]: each for each in found if each["vue"] is (request.param == "vue")}


@pytest.mark.slow
def test_the_node_library_adds_it_and_it_makes_a_video(reports):
    assert reports
    for report in reports.values():
        assert report["end"]["kind"] == "execution_success", report["end"]
        assert report["errors"] == []
        (video,) = report["videos"]
        assert (video["width"], video["height"]) == (TOY_WIDTH, TOY_HEIGHT)
        assert video["seconds"] == pytest.approx(TOY_FRAMES / 16, abs=0.01)


@pytest.mark.slow
def test_what_is_set_on_the_node_reaches_the_nodes_inside(reports):
    main = values_of(shipped("camera"))
    for name, report in reports.items():
        before, after = (values_of(report[when]) for when in ("fresh", "prompt"))
        assert {key: before[key] for key in FILES | {"prompt", "size", "steps"}} == {
            key: main[key] for key in FILES | {"prompt", "size", "steps"}
        }
        assert NAMES[name] in {node["class_type"] for node in report["prompt"].values()}
        for key, value in {**TOY, **(OF_A_MOVE if "move" in name else {})}.items():
            assert after[key] == value


def values_of(prompt: dict) -> dict:
    """Every value of a prompt by its input's name; names that this test looks at are there once."""
    return {
        name: value
        for node in prompt.values()
        for name, value in node["inputs"].items()
        if not isinstance(value, list) and (name != "frames" or "preset" in node["inputs"])
    }
