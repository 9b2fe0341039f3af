"""The address that preview nodes ask for a drawing, on a real ComfyUI: it draws what a run draws, and reads camera
files of the input folder and of packages only."""

from __future__ import annotations

import io
import json
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from comfy_server import ComfyServer
from PIL import Image
from toy_prompt import EMPTY_PATH

pytestmark = pytest.mark.host

PRESET = {
    "preset": "pan_left",
    "frames": 17,
    "amount": 0,
    "easing": "linear",
    "radius": 4,
    "shake": 0,
    "seed": 0,
    "fov_deg": 79,
}


def node(kind: str, **inputs) -> dict:
    return {"class_type": f"LingBotWorld{kind}", "inputs": inputs}


def preview(**nodes: dict) -> dict:
    """A prompt that draws the node "camera"."""
    return {**nodes, "preview": node("CameraPreview", camera=["camera", 0], frames=0, width=640, height=400)}


def poses(name: str) -> dict:
    return node("LoadPoses", poses=name, lens="beside the poses", frames=9, start=0)


def ask(server: ComfyServer, body: object, what: str = "preview") -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"{server.url}/lingbot_world/camera_{what}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def drawing(server: ComfyServer, prompt: dict, **more) -> np.ndarray:
    status, picture = ask(server, {"prompt": prompt, "node": "preview", **more})
    assert status == 200, picture
    return np.asarray(Image.open(io.BytesIO(picture)))


@pytest.mark.parametrize("camera", [node("CameraPreset", **PRESET), poses("toy/example")])
def test_it_draws_what_a_run_draws_and_queues_nothing(comfy_server, camera):
    prompt = preview(camera=camera)
    before = comfy_server.get("/history").keys()
    drawn = drawing(comfy_server, prompt)
    queued = [run["prompt"][2] for key, run in comfy_server.get("/history").items() if key not in before]
    assert prompt not in queued  # a run of an earlier test may end meanwhile
    run = comfy_server.queue(prompt)
    dark, light = (np.asarray(Image.open(file).convert("RGB")) for file in run.files(comfy_server.base / "temp"))
    assert drawn.shape == (400, 640, 3)
    assert np.array_equal(dark, drawn)
    assert np.array_equal(light, drawing(comfy_server, prompt, light=True))


def test_a_chain_and_a_number_of_another_node_are_followed(comfy_server):
    number = {"class_type": "PrimitiveInt", "inputs": {"value": 33}}
    parts = {"one": node("CameraPreset", **PRESET | {"frames": ["number", 0]}), "number": number}
    links = {"cameras.camera0": ["one", 0], "cameras.camera1": ["one", 0]}
    values = {"frames": 0, "reverse": False, "loop": False, "smooth": 0, "easing": "linear"}
    chained = drawing(comfy_server, preview(camera=node("CameraChain", **links, **values), **parts))
    assert not np.array_equal(chained, drawing(comfy_server, preview(camera=node("CameraPreset", **PRESET))))


def test_what_only_a_run_tells_is_not_drawn(comfy_server):
    unknown = {"class_type": "LoadImage", "inputs": {"image": "example.png"}}
    for camera in (unknown, node("CameraPreset", **PRESET | {"frames": ["image", 0]})):
        assert ask(comfy_server, {"prompt": preview(camera=camera, image=unknown), "node": "preview"}) == (204, b"")


@pytest.mark.parametrize("name", ["/etc", "../models", "C:\\secret", "gone", ""])
def test_only_camera_files_of_the_input_folder_and_of_packages_are_read(comfy_server, name):
    camera = node(
        "CameraImport",
        file=name,
        format="matrices",
        convention="opencv_c2w",
        frames=9,
        fit="cut",
        start=0,
        image_width=0,
        image_height=0,
        fov_deg=0,
    )
    for asked in (poses(name), camera):
        status, answer = ask(comfy_server, {"prompt": preview(camera=asked), "node": "preview"})
        assert status == 200
        assert "input" in json.loads(answer)["error"]


LOOP = {"one": node("CameraChain", **{"cameras.camera0": ["camera", 0]}, frames=0)}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([], 400),
        ({"prompt": {}, "node": "preview"}, 400),
        ({"prompt": preview(camera=node("CameraPreset", **PRESET | {"frames": 10**9})), "node": "preview"}, 200),
        ({"prompt": preview(camera=node("CameraPreset", **PRESET | {"frames": "many"})), "node": "preview"}, 400),
        ({"prompt": preview(camera=node("CameraPreset", **PRESET | {"preset": "gone"})), "node": "preview"}, 200),
        ({"prompt": preview(camera=node("CameraKeys", script="walk on")), "node": "preview"}, 400),
        (
            {
                "prompt": preview(camera=node("CameraChain", **{"cameras.camera0": ["one", 0]}), **LOOP),
                "node": "preview",
            },
            204,
        ),
    ],
)
def test_nonsense_is_refused_and_the_server_lives_on(comfy_server, body, status):
    assert ask(comfy_server, body)[0] == status
    assert drawing(comfy_server, preview(camera=node("CameraPreset", **PRESET))).shape == (400, 640, 3)


def test_an_editor_is_told_what_the_engine_warns_of(comfy_server):
    turned = {"frame": 8, "position": [0, 0, 1], "quaternion": [0, 1, 0, 0]}
    state = json.loads(EMPTY_PATH)
    for keyframes, said in ((state["keyframes"], []), ([state["keyframes"][0], turned], ["Fast turn"])):
        status, answer = ask(comfy_server, state | {"keyframes": keyframes}, "warnings")
        assert status == 200
        assert [words[:9] for words in json.loads(answer)["warnings"]] == said
    assert [ask(comfy_server, body, "warnings")[0] for body in ([], {}, "x", state | {"keyframes": 7})] == [400] * 4


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"extra_pnginfo": {"workflow": {"id": "of the canvas"}}}, "of the canvas"),
        ({"extra_pnginfo": {"workflow": "none"}}, None),
        ({}, None),
    ],
)
def test_a_canvas_is_told_which_workflow_a_run_is_of(comfy_server, sent, told):
    """While it runs, and when it is over."""
    prompt = {"1": {"class_type": "PreviewAny", "inputs": {"source": "nothing"}}}
    run = comfy_server.post("/prompt", {"prompt": prompt, "extra_data": sent})["prompt_id"]
    for _ in range(200):
        if run in comfy_server.get("/history"):
            break
        time.sleep(0.05)
    assert comfy_server.get(f"/lingbot_world/workflow_of?prompt={run}") == told
    assert comfy_server.get("/lingbot_world/workflow_of?prompt=another") is None
