"""Events of Text Encode in a Rollout: the command's frames with the same events, and what is refused."""

from __future__ import annotations

import json
import random

import pytest
import torch
from comfy_server import ComfyServer, FailedPromptError, Run
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.run import generate
from lingbot_world.pipeline.state import load_state
from lingbot_world.vae.weights import MEAN, STD
from safetensors.torch import load_file
from toy_prompt import ToyPrompt, as_toy

pytestmark = pytest.mark.host
ROLLOUT, CAUSAL, TEXT = "LingBotWorldRollout", "LingBotWorldLoadCausal", "LingBotWorldTextEncode"
SIZE = {"width": 64, "height": 48}
EVENTS = [{"second": 0.75, "text": "It begins to rain."}, {"name": "night", "text": "Night falls.", "start": 0.7}]


@pytest.fixture
def fast() -> ToyPrompt:
    """The fast workflow at toy size, its camera standing still, its latent saved."""
    prompt = as_toy("fast")
    del prompt[prompt.node_id("LingBotWorldCameraPreview")]
    del prompt[prompt.node_id(ROLLOUT)]["inputs"]["camera"]
    prompt = prompt.set("LingBotWorldPrepareImage", **SIZE).set(CAUSAL, weight_dtype="fp32")
    prompt = prompt.set(ROLLOUT, seed=random.randrange(2**32), frames=21)
    return prompt.add("latent", "SaveLatent", samples=prompt.link(ROLLOUT), filename_prefix="events")


def with_events(prompt: ToyPrompt, events) -> ToyPrompt:
    prompt = prompt.add("json", "PrimitiveStringMultiline", value=json.dumps(events))
    return prompt.set(TEXT, events=["json", 0])


def latent(server: ComfyServer, run: Run) -> torch.Tensor:
    (path,) = Run(run.prompt_id, {"latent": run.outputs["latent"]}).files(server.base / "output")
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (MEAN, STD))
    return (load_file(path)["latent_tensor"] - mean) / std


def test_a_rollout_with_events_is_what_the_command_makes(server, fast, tmp_path):
    prompt = with_events(fast, EVENTS).set(ROLLOUT, seed=7)
    prompt = prompt.add("save", "LingBotWorldSaveState", state=prompt.link(ROLLOUT, 2), filename_prefix="events/a")
    made = latent(server, server.queue(prompt))
    (tmp_path / "events.json").write_text(json.dumps(EVENTS))
    generate(
        GenerateOptions(
            ckpt_dir=server.base / "models/lingbot_world/toy/lingbot_world_fast",
            image=server.base / "input" / "example.png",
            seed=7,
            device="cpu",
            dtype="fp32",
            prompt=prompt[prompt.node_id(TEXT)]["inputs"]["prompt"],
            output=tmp_path / "*.png",
            frame_num=21,
            save_state=tmp_path / "a.state",
            events=tmp_path / "events.json",
            **SIZE,
        )
    )
    expected = load_state(tmp_path / "a.state")
    assert (made - expected.latent).abs().max() < 1e-3
    plain = latent(server, server.queue(fast.set(ROLLOUT, seed=7)))
    assert torch.equal(plain[:, :, :3], made[:, :, :3])
    assert (plain[:, :, 3:] - made[:, :, 3:]).abs().max() > 1e-2
    kept = load_state(next((server.base / "output/events").glob("a_*.state")))
    assert [prompt.chunks for prompt in kept.prompts] == [prompt.chunks for prompt in expected.prompts] == [1, 1]


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([{"second": 2, "text": "Rain."}], "begins at 2 s, and the video ends at 1.5 s"),
        ([{"second": -1, "text": "Rain."}], "`start` is -1"),
        ([{"second": 0, "text": "a", "key": 1}, {"second": 0, "text": "b", "key": 1}], "two events have the key '1'"),
        ([{"text": "Rain."}], "none has a start"),
    ],
)
def test_bad_events_are_refused_before_a_step(server, fast, events, told):
    with pytest.raises(FailedPromptError, match=told):
        server.queue(with_events(fast, events))


def test_the_base_model_says_that_it_reads_none(server):
    prompt = with_events(as_toy("simple"), EVENTS)
    run = server.queue(prompt)
    assert any("does not read the events of a text node, which a Rollout reads" in text for _, text in run.texts)
