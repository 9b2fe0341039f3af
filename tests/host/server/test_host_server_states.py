"""Save State and Load State on a real ComfyUI: a world goes on from a file, and what is no state is refused."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from comfy_server import ComfyServer, RejectedPromptError, Run
from lingbot_world.pipeline.state import load_state
from safetensors.torch import load_file
from toy_prompt import ToyPrompt, as_toy

pytestmark = pytest.mark.host

ROLLOUT, SAVE, LOAD = "LingBotWorldRollout", "LingBotWorldSaveState", "LingBotWorldLoadState"


@pytest.fixture
def fast() -> ToyPrompt:
    """The fast workflow at toy size with a seed of its own; its only output is the latent."""
    prompt = as_toy("fast").set("LingBotWorldPrepareImage", width=64, height=48)
    prompt = prompt.set(ROLLOUT, seed=random.randrange(2**32))
    for kind in ("LingBotWorldCameraPreview", "SaveVideo"):
        del prompt[prompt.node_id(kind)]
    return prompt


def saved_latent(prompt: ToyPrompt, node: str) -> ToyPrompt:
    return prompt.add("latent", "SaveLatent", samples=[node, 0], filename_prefix="states-latent")


def latent(server: ComfyServer, run: Run) -> torch.Tensor:
    (path,) = run.files(server.base / "output")
    return load_file(path)["latent_tensor"]


def going_on(prompt: ToyPrompt, state: list) -> ToyPrompt:
    values = {**prompt[prompt.node_id(ROLLOUT)]["inputs"], "state": state, "seed": 3}
    del values["start_image"]
    return saved_latent(prompt.add("second", ROLLOUT, **values), "second")


def newest_state(server: ComfyServer) -> Path:
    return max((server.base / "output").rglob("*.state"), key=lambda path: path.stat().st_mtime_ns)


def test_a_world_goes_on_from_its_file_as_it_does_in_the_queue(server, fast):
    before = {*(server.base / "output").rglob("*.state")}
    run = server.queue(fast.add("save", SAVE, state=fast.link(ROLLOUT, 2), filename_prefix="my worlds/first"))
    path = newest_state(server)
    assert path not in before
    assert path.parent == server.base / "output" / "my worlds"
    (said,) = run.outputs["save"]["text"]
    assert str(path) in said
    assert load_state(path).frames == 9
    longer = going_on(fast, fast.link(ROLLOUT, 2)).add("both", SAVE, state=["second", 2], filename_prefix="both shots")
    expected = latent(server, server.queue(longer))  # of one text node, whose embedding both shots share
    assert [shot.chunks for shot in load_state(newest_state(server)).prompts] == [1, 1]
    server.free()
    name = f"my worlds/{path.name} [output]"
    assert name in server.object_info(LOAD)[LOAD]["input"]["required"]["file"][1]["options"]
    run = server.queue(going_on(fast.add("load", LOAD, file=name), ["load", 0]))
    assert fast.node_id(ROLLOUT) not in run.executed
    assert torch.equal(latent(server, run), expected)


def test_nothing_is_overwritten_and_the_input_folder_is_read_too(server, fast):
    for _ in range(2):
        prompt = fast.set(ROLLOUT, seed=random.randrange(2**32))
        server.queue(prompt.add("save", SAVE, state=prompt.link(ROLLOUT, 2), filename_prefix="twice"))
    assert len([*(server.base / "output").glob("twice_*.state")]) == 2
    shutil.copy(newest_state(server), server.base / "input" / "mine.state")
    run = server.queue(going_on(fast.add("load", LOAD, file="mine.state"), ["load", 0]))
    assert latent(server, run).shape[2] == 6


@pytest.mark.parametrize("name", ["../secret.state", "/etc/passwd", "../secret.state [output]", "link.state"])
def test_a_name_that_leaves_the_folders_is_refused(server, fast, name):
    (server.base / "secret.state").write_bytes(b"")
    link = server.base / "input" / "link.state"
    link.unlink(missing_ok=True)
    link.symlink_to(server.base / "secret.state")
    with pytest.raises(RejectedPromptError, match="is not a name inside|a link that leaves"):
        server.queue(going_on(fast.add("load", LOAD, file=name), ["load", 0]))


@pytest.mark.parametrize(
    ("name", "said"), [("gone.state", "does not exist"), ("bad.state", "bad.state"), (5, "5 does not exist")]
)
def test_what_is_no_state_is_refused_before_anything_runs(server, fast, name, said):
    (server.base / "input" / "bad.state").write_bytes(b"not a state at all")
    with pytest.raises(RejectedPromptError, match=said):
        server.queue(going_on(fast.add("load", LOAD, file=name), ["load", 0]))


def test_a_prefix_that_leaves_the_output_folder_is_refused(server, fast):
    prompt = fast.add("save", SAVE, state=fast.link(ROLLOUT, 2), filename_prefix="../../worlds/a")
    with pytest.raises(RejectedPromptError, match="output folder"):
        server.queue(prompt)
    assert not (server.base.parent / "worlds").exists()
