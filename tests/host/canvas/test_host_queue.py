"""`lingbot-world queue` against a real ComfyUI: what it sends, what it saves, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from comfy_server import ComfyServer
from PIL import Image
from toy_prompt import TOY_FRAMES, TOY_HEIGHT, TOY_WIDTH, ToyPrompt, toy_prompt

pytestmark = pytest.mark.host


def queue(
    server: ComfyServer, folder: Path, *options: str | Path, prompt: ToyPrompt | None = None
) -> subprocess.CompletedProcess:
    """`lingbot-world queue` of the toy workflow, or of `prompt`, run in a folder. Of an option given twice the last one
    counts."""
    workflow = folder / "workflow.json"
    workflow.write_text(json.dumps(prompt or toy_prompt()), encoding="utf-8")
    command = [sys.executable, "-m", "lingbot_world", "queue", str(workflow)]
    command += ["--server", server.url, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=900)


def nodes_of_last_prompt(server: ComfyServer) -> dict[str, dict]:
    """Inputs of each kind of node in the prompt that ran last."""
    *_, last = server.get("/history").values()
    return {node["class_type"]: node["inputs"] for node in last["prompt"][2].values()}


def write_cameras(folder: Path, toy: Path) -> list[Path]:
    """Two folders called cam: one with the toy's poses, one with those poses twice as far apart."""
    folders = [folder / name / "cam" for name in ("x", "y")]
    for scale, place in enumerate(folders, start=1):
        place.mkdir(parents=True)
        poses = np.load(toy / "example/poses.npy")
        poses[:, :3, 3] *= scale
        np.save(place / "poses.npy", poses)
        np.save(place / "intrinsics.npy", np.load(toy / "example/intrinsics.npy"))
    return folders


def test_it_fills_in_runs_and_saves(comfy_server, tmp_path):
    Image.new("RGB", (TOY_WIDTH, TOY_HEIGHT), (90, 120, 60)).save(tmp_path / "start image.png")
    poses = comfy_server.base / "models/lingbot_world/toy/example"
    options = ["--image", "start image.png", "--prompt", "a green field", "--seed", "5", "--poses", poses]
    done = queue(comfy_server, tmp_path, *options, "--output", "clip.mp4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "clip.mp4"
    with av.open(str(tmp_path / "clip.mp4")) as video:
        assert sum(1 for _ in video.decode(video.streams.video[0])) == TOY_FRAMES
    assert "4/4" in done.stderr


def test_files_of_one_name_stay_apart_and_nothing_is_overwritten(comfy_server, tmp_path):
    """Two jobs whose folders are both called cam, with an image called as one that the user has."""
    inputs = comfy_server.base / "input"
    users_own = (inputs / "example.png").read_bytes()
    Image.new("RGB", (TOY_WIDTH, TOY_HEIGHT), (1, 2, 3)).save(tmp_path / "example.png")
    folders = write_cameras(tmp_path, comfy_server.base / "models/lingbot_world/toy")
    given = []
    for folder in [*folders, folders[0]]:
        done = queue(comfy_server, tmp_path, "--poses", folder, "--image", "example.png")
        assert done.returncode == 0, done.stderr
        nodes = nodes_of_last_prompt(comfy_server)
        given.append(nodes["LingBotWorldLoadPoses"]["poses"])
        image = nodes["LoadImage"]["image"]
        assert (inputs / image).read_bytes() == (tmp_path / "example.png").read_bytes()
    assert given[0] == given[2] != given[1]
    for name, folder in zip(given, folders, strict=False):
        assert (inputs / name / "poses.npy").read_bytes() == (folder / "poses.npy").read_bytes()
    assert (inputs / "example.png").read_bytes() == users_own


def test_a_file_that_is_not_what_its_name_says_is_left_alone_and_named(comfy_server, tmp_path):
    folder, _ = write_cameras(tmp_path, comfy_server.base / "models/lingbot_world/toy")
    np.save(folder / "poses.npy", np.load(folder / "poses.npy")[::-1])  # as no other test does
    assert queue(comfy_server, tmp_path, "--poses", folder).returncode == 0
    uploaded = comfy_server.base / "input" / nodes_of_last_prompt(comfy_server)["LingBotWorldLoadPoses"]["poses"]
    (uploaded / "poses.npy").write_bytes(b"changed")
    done = queue(comfy_server, tmp_path, "--poses", folder)
    assert done.returncode == 2
    assert f"{uploaded.name}/poses.npy: delete that one" in done.stderr
    assert (uploaded / "poses.npy").read_bytes() == b"changed"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "Nobody.steps=3"], "no node 'Nobody'"),
        (["--set", "LingBotWorldSampler.boundary=7"], "boundary"),
        (["--image", "none.png"], "--image: there is no file none.png"),
        (["--poses", "."], "--poses: . has no poses.npy"),
        (["--output", "none/clip.mp4"], "--output: there is no folder"),
        (["--server", "http://127.0.0.1:9"], "no ComfyUI answers"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(comfy_server, tmp_path, options, words):
    before = comfy_server.get("/history")
    done = queue(comfy_server, tmp_path, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert comfy_server.get("/history") == before


def test_a_workflow_of_which_only_a_part_can_run_is_refused(comfy_server, tmp_path):
    """ComfyUI itself would draw the preview and say nothing of the video."""
    prompt = toy_prompt()
    camera = prompt.link("LingBotWorldLoadPoses")
    prompt = prompt.add("preview", "LingBotWorldCameraPreview", camera=camera, frames=0, width=800, height=500)
    done = queue(comfy_server, tmp_path, "--set", "LingBotWorldSampler.boundary=7", prompt=prompt)
    assert done.returncode == 2
    assert "A part of the workflow cannot run" in done.stderr
    assert "(LingBotWorldSampler): " in done.stderr
    assert not done.stdout
