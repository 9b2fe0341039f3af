"""What runs again when one thing of a workflow changes: on a real ComfyUI, whose calls of VAE and text encoder are
counted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from comfy_server import ComfyServer, Run
from safetensors.torch import load_file
from toy_prompt import ToyPrompt, as_toy, toy_prompt

pytestmark = pytest.mark.host

POSES, TEXT, VIDEO, VAE = "LingBotWorldLoadPoses", "LingBotWorldTextEncode", "WanImageToVideo", "LingBotWorldLoadVAE"
PRESET = "LingBotWorldCameraPreset"
EXPERTS, SAMPLER, ROLLOUT = "LingBotWorldLoadExperts", "LingBotWorldSampler", "LingBotWorldRollout"
IMAGES = {"module": "comfy.ldm.wan.vae", "owner": "WanVAE", "name": "encode", "error": "none"}
PROMPTS = {"module": ".host.model.clip", "name": "encode", "error": "none"}
OTHER_LENS = "default (79 degrees)"


@pytest.fixture
def calls(comfy_server: ComfyServer) -> Iterator[Callable[..., list[str]]]:
    """`calls(counted, prompt)`: the arguments, as text, of each call of a function while a prompt runs, and the run."""

    def count(counted: dict, prompt: dict) -> tuple[list[str], Run]:
        comfy_server.post("/lingbot_fault", counted)
        run = comfy_server.queue(prompt)
        return comfy_server.get("/lingbot_fault"), run

    yield count
    comfy_server.post("/lingbot_fault", {})


@pytest.fixture
def toy() -> ToyPrompt:
    """The toy workflow with a latent to look at, and prompts that nobody encoded before."""
    number = random.random()
    prompt = toy_prompt().set(TEXT, prompt=f"a lake {number}", negative=f"a blur {number}")
    return prompt.add("900", "SaveLatent", samples=prompt.link(SAMPLER), filename_prefix="test/reruns")


@pytest.fixture
def new_vae(comfy_server: ComfyServer) -> Callable[[], None]:
    """Has ComfyUI load the VAE again: it has encoded nothing by then."""
    return lambda: (comfy_server.base / "models" / "lingbot_world" / "toy" / "Wan2.1_VAE.pth").touch()


def latent(run: Run, base: Path) -> torch.Tensor:
    (path,) = Run(run.prompt_id, {"900": run.outputs["900"]}).files(base / "output")
    return load_file(path)["latent_tensor"]


def ids(prompt: ToyPrompt, *kinds: str) -> set[str]:
    return {prompt.node_id(kind) for kind in kinds}


def test_another_camera_does_not_encode_the_image_or_the_prompts_again(comfy_server, toy, calls, new_vae):
    new_vae()
    encoded, run = calls(IMAGES, toy)
    assert len(encoded) == 1
    before = latent(run, comfy_server.base)
    moved = toy.set(POSES, lens=OTHER_LENS)
    encoded, run = calls(IMAGES, moved)
    assert encoded == []
    assert ids(toy, VIDEO, SAMPLER) <= set(run.executed)
    assert ids(toy, TEXT, VAE, EXPERTS) <= run.cached
    remembered = latent(run, comfy_server.base)
    assert not torch.equal(remembered, before)
    new_vae()
    encoded, run = calls(IMAGES, moved)
    assert len(encoded) == 1
    assert torch.equal(latent(run, comfy_server.base), remembered)


def test_another_size_image_or_length_is_encoded(toy, calls, new_vae):
    new_vae()
    calls(IMAGES, toy)
    prepare = "LingBotWorldPrepareImage"
    for changed in (toy.set(prepare, width=64), toy.set(prepare, fit="pad", height=80), toy.set(POSES, frames=5)):
        assert len(calls(IMAGES, changed)[0]) == 1
    assert calls(IMAGES, toy)[0] == []  # of the last four


@pytest.mark.parametrize("changed", ["prompt", "negative"])
def test_another_prompt_is_encoded_alone_and_the_image_not_again(comfy_server, toy, calls, changed):
    calls(PROMPTS, toy)
    words = f"a storm {random.random()}"
    encoded, run = calls(PROMPTS, toy.set(TEXT, **{changed: words}))
    (arguments,) = encoded
    assert arguments.startswith(f"([{words!r}], ")
    assert ids(toy, TEXT, VIDEO, SAMPLER) <= set(run.executed)
    assert ids(toy, VAE, EXPERTS) <= run.cached
    remembered = latent(run, comfy_server.base)
    encoder = comfy_server.base / "models" / "lingbot_world" / "toy" / "models_t5_umt5-xxl-enc-bf16.pth"
    encoder.touch()  # another file now: nothing of it is known
    again = toy.set(TEXT, **{changed: words})
    encoded, run = calls(PROMPTS, again)
    (arguments,), inputs = encoded, again[again.node_id(TEXT)]["inputs"]
    assert arguments.startswith(f"([{inputs['prompt']!r}, {inputs['negative']!r}], ")
    assert latent(run, comfy_server.base).equal(remembered)


def test_another_prompt_does_not_encode_the_image_again(toy, calls):
    calls(IMAGES, toy)
    encoded, run = calls(IMAGES, toy.set(TEXT, prompt=f"a storm {random.random()}"))
    assert encoded == []
    assert ids(toy, VIDEO) <= set(run.executed)


def test_a_prompt_that_is_cut_is_said_in_every_run(comfy_server, toy):
    long = toy.set(TEXT, prompt=f"{random.random()} " + "lake " * 600)
    for negative in ("a", "b"):
        run = comfy_server.queue(long.set(TEXT, negative=negative))
        assert any(node == toy.node_id(TEXT) and "are cut off" in text for node, text in run.texts)


def test_a_rollout_along_another_path_does_not_encode_the_image_again(calls, new_vae):
    toy = as_toy("fast").set(ROLLOUT, seed=random.randrange(2**32))
    for node in toy.values():
        for name, value in node["inputs"].items():
            if isinstance(value, str):
                node["inputs"][name] = value.replace("lingbot-world-base-cam-nf4", "toy")
    new_vae()
    assert len(calls(IMAGES, toy)[0]) == 1
    encoded, run = calls(IMAGES, toy.set("LingBotWorldCameraPreset", fov_deg=60.0))
    assert encoded == []
    assert toy.node_id(ROLLOUT) in run.executed


def test_a_new_seed_makes_a_camera_anew_only_where_it_shakes(comfy_server):
    """A canvas that is set to `randomize` sends a new seed with every run."""
    amount = random.random() + 1

    def ran(shake: float) -> list[str]:
        values = {
            "preset": "pan_left",
            "frames": 9,
            "amount": amount,
            "easing": "linear",
            "radius": 4.0,
            "shake": shake,
            "seed": random.randrange(2**32),
            "fov_deg": 79.0,
        }
        drawing = {"camera": ["camera", 0], "frames": 0, "width": 400, "height": 250}
        prompt = ToyPrompt().add("camera", PRESET, **values).add("drawing", "LingBotWorldCameraPreview", **drawing)
        return comfy_server.queue(prompt).executed

    assert ran(shake=0.0) == ["camera", "drawing"]
    assert ran(shake=0.0) == []
    assert ran(shake=1.0) == ran(shake=1.0) == ["camera", "drawing"]


def test_a_toy_package_that_was_deleted_is_made_again(comfy_server):
    """As its help page asks of whoever has one of an earlier version."""
    folder = comfy_server.base / "models" / "lingbot_world" / "toy"
    aside = folder.rename(folder.with_name("aside"))
    prompt = ToyPrompt().add("toy", "LingBotWorldToyPackage")
    try:
        for _ in range(2):
            assert "Made" in comfy_server.queue(prompt).outputs["toy"]["text"][0]
            shutil.rmtree(folder)
    finally:
        aside.rename(folder)
    comfy_server.queue(prompt)
    assert comfy_server.queue(prompt).executed == []
