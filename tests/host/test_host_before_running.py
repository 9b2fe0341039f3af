"""What is found before a prompt runs, on a real ComfyUI: a camera that does not fit its video, camera files that cannot
be read. One fault is one message, on the node at fault."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from comfy_server import ComfyServer
from refused_prompts import fails, only_problem
from toy_prompt import ToyPrompt, fresh_toy

pytestmark = pytest.mark.host

POSES, APPLY, VIDEO, SAMPLER = (
    "LingBotWorldLoadPoses",
    "LingBotWorldApplyCamera",
    "WanImageToVideo",
    "LingBotWorldSampler",
)
PRESET, IMPORT = "LingBotWorldCameraPreset", "LingBotWorldCameraImport"
PRESET_VALUES = {
    "preset": "pan_left",
    "amount": 0,
    "easing": "linear",
    "radius": 4,
    "shake": 0,
    "seed": 0,
    "fov_deg": 79,
}
CHAIN_VALUES = {"frames": 0, "reverse": False, "loop": False, "smooth": 0, "easing": "linear"}
EDITOR_PATH = (
    '{"version": 1, "frames": 13, "fps": 16, "fov_deg": 79, "ease": "linear", "loop": false, "keyframes": '
    '[{"frame": 0, "position": [0, 0, 0], "quaternion": [0, 0, 0, 1]}, '
    '{"frame": 12, "position": [0, 0, 2], "quaternion": [0, 0, 0, 1]}]}'
)


def with_preset(prompt: ToyPrompt, key: str, frames: int) -> ToyPrompt:
    return prompt.add(key, PRESET, frames=frames, **PRESET_VALUES)


def other_camera(kind: str) -> ToyPrompt:
    """The toy, whose video has the 9 frames of its poses, with a camera of 13 or 17 frames from another node."""
    prompt = with_preset(with_preset(fresh_toy(steps=1), "80", 13), "81", 5)
    if kind == "preset":
        return prompt.set(APPLY, camera=["80", 0])
    if kind == "chain":
        links = {"cameras.camera0": ["80", 0], "cameras.camera1": ["81", 0]}
        return prompt.add("82", "LingBotWorldCameraChain", **links, **CHAIN_VALUES).set(APPLY, camera=["82", 0])
    if kind == "keys":
        keys = {"script": "w-13", "step": 0.05, "turn_deg": 2, "fov_deg": 79}
        return prompt.add("82", "LingBotWorldCameraKeys", **keys).set(APPLY, camera=["82", 0])
    picture = {"image": prompt.link("LingBotWorldPrepareImage")}
    return prompt.add("82", "LingBotWorldCameraEditor", path=EDITOR_PATH, **picture).set(APPLY, camera=["82", 0])


@pytest.mark.parametrize("kind", ["preset", "chain", "keys", "editor"])
def test_a_camera_of_another_length_than_the_video(comfy_server, kind):
    prompt = other_camera(kind)
    problem = only_problem(comfy_server, prompt, prompt.node_id(APPLY))
    assert problem["extra_info"]["input_name"] == "camera"
    assert "the latent 3 latent frames for 9: wire" in problem["details"]


def test_a_video_of_another_length_than_the_camera(comfy_server):
    """By its own number, by a number node and by another camera's frames."""
    numbered = fresh_toy(steps=1).add("80", "PrimitiveInt", value=21).set(VIDEO, length=["80", 0])
    of_another = with_preset(fresh_toy(steps=1), "80", 21).set(VIDEO, length=["80", 1])
    for prompt in (fresh_toy(steps=1).set(VIDEO, length=21), numbered, of_another):
        problem = only_problem(comfy_server, prompt, prompt.node_id(APPLY))
        assert "9 poses for 9 frames, the latent 6 latent frames for 21" in problem["details"]


def test_a_length_that_only_a_run_tells_is_refused_by_the_node_itself(comfy_server):
    prompt = fresh_toy(steps=1)
    unknown = prompt.set(VIDEO, length=prompt.link("LingBotWorldPrepareImage", 1))
    fails(comfy_server, unknown, APPLY, "the latent 20 latent frames for 77")


def test_lengths_that_fit_run(comfy_server):
    numbered = fresh_toy(steps=1).add("80", "PrimitiveInt", value=9).set(VIDEO, length=["80", 0])
    for prompt in (fresh_toy(steps=1).set(VIDEO, length=9), fresh_toy(steps=1).set(VIDEO, length=11), numbered):
        assert prompt.node_id(APPLY) in comfy_server.queue(prompt).executed


def test_action_control_without_actions(comfy_server):
    prompt = with_preset(fresh_toy(steps=1), "80", 9).set(APPLY, camera=["80", 0], control="action (W, A, S, D)")
    assert "has no actions" in only_problem(comfy_server, prompt, prompt.node_id(APPLY))["details"]


@pytest.mark.parametrize(("kind", "name"), [(APPLY, "camera"), (SAMPLER, "high_noise")])
def test_a_socket_without_a_wire_is_told_as_comfyui_tells_it(comfy_server, kind, name):
    """Even the one that the node's own check is hung on."""
    prompt = fresh_toy(steps=1)
    del prompt[prompt.node_id(kind)]["inputs"][name]
    assert only_problem(comfy_server, prompt, prompt.node_id(kind))["type"] == "required_input_missing"


@pytest.fixture
def bad_lens(comfy_server: ComfyServer) -> Path:
    """A pose folder whose lens file is none."""
    folder = comfy_server.base / "input" / "bad_lens"
    folder.mkdir(exist_ok=True)
    shutil.copy(comfy_server.base / "models/lingbot_world/toy/example/poses.npy", folder)
    (folder / "intrinsics.npy").write_bytes(b"nothing")
    return folder


def test_a_lens_file_that_is_damaged_missing_or_not_in_the_list(comfy_server, bad_lens):
    prompt = fresh_toy(steps=1).set(POSES, poses="bad_lens")
    assert "intrinsics.npy" in only_problem(comfy_server, prompt, prompt.node_id(POSES))["details"]
    (bad_lens / "intrinsics.npy").unlink()
    assert "no such file" in only_problem(comfy_server, prompt, prompt.node_id(POSES))["details"]
    problem = only_problem(comfy_server, prompt.set(POSES, lens="gone.npy"), prompt.node_id(POSES))
    assert problem["extra_info"]["input_name"] == "lens"


def test_a_camera_file_of_another_format(comfy_server):
    values = {"convention": "set by the format", "fit": "cut", "start": 0, "image_width": 0, "image_height": 0}
    prompt = fresh_toy(steps=1).add(
        "80", IMPORT, file="toy/example/poses.npy", format="colmap", frames=9, fov_deg=0, **values
    )
    problem = only_problem(comfy_server, prompt.set(APPLY, camera=["80", 0]), "80")
    assert problem["extra_info"]["input_name"] == "file"
    assert "colmap" in problem["details"]


@pytest.mark.parametrize(("fit", "start", "fewest"), [("cut", 79, 5), ("resample", 81, 1)])
def test_a_start_behind_the_end_of_a_camera_file(comfy_server, fit, start, fewest):
    values = {"convention": "set by the format", "fov_deg": 0, "image_width": 0, "image_height": 0}
    file = {"file": "toy/example/poses.npy", "format": "lingbot", "frames": 9, "fit": fit, "start": start}
    prompt = fresh_toy(steps=1).add("80", IMPORT, **file, **values).set(APPLY, camera=["80", 0])
    words = f"poses.npy: 81 poses, fewer than {fewest} of them from frame {start} on"
    assert words in only_problem(comfy_server, prompt, "80")["details"]


def test_asking_nodes_what_they_would_make_shows_nothing(comfy_server):
    """A lens file of seven rows is told of by Load Poses when it runs, not while ComfyUI validates Apply Camera."""
    example, folder = comfy_server.base / "models/lingbot_world/toy/example", comfy_server.base / "input" / "seven_rows"
    folder.mkdir(exist_ok=True)
    shutil.copy(example / "poses.npy", folder)
    np.save(folder / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (7, 1)))
    prompt = fresh_toy(steps=1).set(POSES, poses="seven_rows").set(VIDEO, length=21)
    before = len(comfy_server.log())
    only_problem(comfy_server, prompt, prompt.node_id(APPLY))
    assert "rows" not in comfy_server.log()[before:]
