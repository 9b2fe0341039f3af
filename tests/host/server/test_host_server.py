"""The toy workflow on a real ComfyUI, through POST /prompt and the websocket."""

from __future__ import annotations

import random
from pathlib import Path

import av
import numpy as np
import pytest
from comfy_server import ComfyServer, Run
from PIL import Image
from safetensors.torch import load_file
from toy_prompt import TOY_FRAMES, TOY_HEIGHT, TOY_WIDTH, ToyPrompt, fresh_toy

pytestmark = pytest.mark.host

SAMPLER = "LingBotWorldSampler"
EXPERTS = "LingBotWorldLoadExperts"
TEXT = "LingBotWorldTextEncode"


@pytest.fixture
def toy() -> ToyPrompt:
    return fresh_toy()


def with_latent(prompt: ToyPrompt) -> ToyPrompt:
    return prompt.add("900", "SaveLatent", samples=prompt.link(SAMPLER), filename_prefix="test/latent")


def with_frames(prompt: ToyPrompt) -> ToyPrompt:
    return prompt.add("901", "SaveImage", images=prompt.link("VAEDecode"), filename_prefix="test/frame")


def saved(run: Run, node: str, base: Path) -> list[Path]:
    only = Run(run.prompt_id, {node: run.outputs[node]})
    return only.files(base / "output")


def touch_an_expert(server: ComfyServer) -> None:
    package = server.base / "models" / "lingbot_world" / "toy"
    (weights,) = (package / "high_noise_model_bnb_nf4").glob("*.safetensors")
    weights.touch()


def test_the_toy_gives_a_video_of_the_right_size_and_length_within_a_minute(comfy_server, toy):
    run = comfy_server.queue(toy, timeout=300)
    (path,) = (file for file in run.files(comfy_server.base / "output") if file.suffix == ".mp4")
    with av.open(str(path)) as video:
        stream = video.streams.video[0]
        frames = sum(1 for _ in video.decode(stream))
        assert (stream.width, stream.height, frames) == (TOY_WIDTH, TOY_HEIGHT, TOY_FRAMES)


def test_progress_comes_over_the_websocket(comfy_server, toy):
    touch_an_expert(comfy_server)
    toy = toy.set(TEXT, prompt=f"a prompt that nobody encoded, {random.random()}")
    steps = toy[toy.node_id(SAMPLER)]["inputs"]["steps"]
    run = comfy_server.queue(toy)
    sampling = run.progress(toy.node_id(SAMPLER))
    assert sampling[-1] == (steps, steps)
    assert [value for value, _ in sampling] == sorted(value for value, _ in sampling)
    for kind in (EXPERTS, TEXT):
        done, total = run.progress(toy.node_id(kind))[-1]
        assert done == total > 0


def test_same_seed_same_bits_after_the_cache_is_emptied(comfy_server, toy):
    prompt = with_frames(with_latent(toy))
    results = []
    for _ in range(2):
        run = comfy_server.queue(prompt)
        (latent,) = saved(run, "900", comfy_server.base)
        frames = [np.asarray(Image.open(path)) for path in saved(run, "901", comfy_server.base)]
        assert toy.node_id(SAMPLER) in run.executed
        results.append((load_file(latent)["latent_tensor"], np.stack(frames)))
        comfy_server.free()
    (latent, frames), (latent_again, frames_again) = results
    assert latent.shape[2] == (TOY_FRAMES - 1) // 4 + 1
    assert latent.isfinite().all()
    assert latent.std() > 0.1
    assert (latent == latent_again).all()
    assert frames.shape == (TOY_FRAMES, TOY_HEIGHT, TOY_WIDTH, 3)
    assert (frames == frames_again).all()


def test_another_seed_gives_another_latent(comfy_server, toy):
    latents = []
    for seed in (1, 2):
        (path,) = saved(comfy_server.queue(with_latent(toy.set(SAMPLER, seed=seed))), "900", comfy_server.base)
        latents.append(load_file(path)["latent_tensor"])
    assert (latents[0] != latents[1]).any()


def test_another_prompt_reuses_the_experts(comfy_server, toy):
    comfy_server.queue(toy)
    run = comfy_server.queue(toy.set(TEXT, prompt=f"another prompt {random.random()}"))
    assert toy.node_id(EXPERTS) in run.cached
    assert {toy.node_id(TEXT), toy.node_id(SAMPLER)} <= set(run.executed)


def test_an_identical_prompt_is_answered_from_the_cache(comfy_server, toy):
    comfy_server.queue(toy)
    run = comfy_server.queue(toy)
    assert run.executed == []
    assert any(path.suffix == ".mp4" for path in run.files(comfy_server.base / "output"))


def test_a_rewritten_expert_is_loaded_again(comfy_server, toy):
    comfy_server.queue(toy)
    touch_an_expert(comfy_server)
    assert toy.node_id(EXPERTS) in comfy_server.queue(toy).executed


def test_interrupt_ends_within_a_step_and_the_next_prompt_runs(comfy_server, toy):
    def stop(kind: str, data: dict) -> None:
        if kind == "progress" and data["node"] == sampler and data["value"] == 1:
            comfy_server.interrupt()

    sampler = toy.node_id(SAMPLER)
    run = comfy_server.queue(toy.set(SAMPLER, steps=1000), on_event=stop, timeout=300)
    assert run.interrupted
    assert run.progress(sampler)[-1][0] <= 20
    assert comfy_server.queue(toy).files(comfy_server.base / "output")
