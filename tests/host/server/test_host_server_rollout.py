"""LingBot-World Rollout through ComfyUI's queue: progress, pictures, states, interrupts and bad input."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator

import pytest
import torch
from bad_files import write_bad_causal_models
from comfy_server import ComfyServer, Run
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.run import generate
from lingbot_world.pipeline.state import load_state
from lingbot_world.vae.weights import MEAN, STD
from refused_prompts import only_problem, refuses
from release_cases import write_toy_shards
from safetensors.torch import load_file, save_file
from toy_prompt import PACKAGE, ToyPrompt, as_toy

pytestmark = pytest.mark.host

ROLLOUT, CAUSAL, TEXT = "LingBotWorldRollout", "LingBotWorldLoadCausal", "LingBotWorldTextEncode"
GUIDER, LORA = "LingBotWorldGuider", "LoraLoaderModelOnly"
EXPERTS, SAMPLER, PRESET = "LingBotWorldLoadExperts", "LingBotWorldSampler", "LingBotWorldCameraPreset"
SIZE = {"width": 64, "height": 48}


@pytest.fixture
def fast() -> ToyPrompt:
    """The fast workflow at toy size with a seed of its own, its latent saved. Without the camera's preview, which would
    run by itself where the video is refused."""
    prompt = as_toy("fast")
    del prompt[prompt.node_id("LingBotWorldCameraPreview")]
    prompt = prompt.set("LingBotWorldPrepareImage", **SIZE).set(ROLLOUT, seed=random.randrange(2**32))
    return prompt.add("latent", "SaveLatent", samples=prompt.link(ROLLOUT), filename_prefix="rollout")


def going_on(prompt: ToyPrompt, seed: int) -> ToyPrompt:
    """With a second Rollout, whose latent is saved."""
    first = prompt[prompt.node_id(ROLLOUT)]["inputs"]
    values = {name: value for name, value in first.items() if name != "start_image"}
    prompt = prompt.add("second", ROLLOUT, **values | {"seed": seed, "state": prompt.link(ROLLOUT, 2)})
    return prompt.add("second latent", "SaveLatent", samples=["second", 0], filename_prefix="second")


def only_second(prompt: ToyPrompt) -> ToyPrompt:
    """Without what is saved of the first Rollout, which ComfyUI would run by itself where the second is refused."""
    return ToyPrompt({key: node for key, node in prompt.items() if key not in ("latent", prompt.node_id("SaveVideo"))})


def latent(server: ComfyServer, run: Run, node: str) -> torch.Tensor:
    (path,) = Run(run.prompt_id, {node: run.outputs[node]}).files(server.base / "output")
    return load_file(path)["latent_tensor"]


def test_progress_counts_frames_and_every_chunk_has_a_picture(server, fast):
    run = server.queue(fast.set(PRESET, frames=33))
    progress = run.progress(fast.node_id(ROLLOUT))
    assert progress[-1] == (33, 33)
    assert {9, 21} <= {value for value, _ in progress}
    assert [value for value, _ in progress] == sorted(value for value, _ in progress)
    assert run.previews == 3


def test_a_world_goes_on_in_a_second_run_from_the_state_that_the_queue_kept(server, fast):
    first = latent(server, server.queue(fast), "latent")
    prompt = going_on(fast, seed=3)
    run = server.queue(prompt)
    assert fast.node_id(ROLLOUT) not in run.executed
    whole = latent(server, run, "second latent")
    assert whole.shape[2] == first.shape[2] + 3
    assert torch.equal(whole[:, :, :3], first)
    server.free()
    assert torch.equal(latent(server, server.queue(prompt), "second latent"), whole)


def test_the_queue_gives_what_the_command_gives(server, fast, tmp_path):
    """The same image at the same size, prompt, camera standing still and seed."""
    inputs = fast[fast.node_id(ROLLOUT)]["inputs"]
    del inputs["camera"]
    prompt = fast.set(ROLLOUT, seed=7, frames=21).set(CAUSAL, weight_dtype="fp32")
    run = server.queue(prompt)
    said = [text for node, text in run.texts if node == prompt.node_id(ROLLOUT)]
    assert said == ["There is no camera path: the camera stands still."]
    package = server.base / "models" / "lingbot_world" / "toy"
    state = tmp_path / "a.state"
    generate(
        GenerateOptions(
            ckpt_dir=package / "lingbot_world_fast",
            image=server.base / "input" / "example.png",
            seed=7,
            device="cpu",
            dtype="fp32",
            prompt=prompt[prompt.node_id(TEXT)]["inputs"]["prompt"],
            output=tmp_path / "*.png",
            frame_num=21,
            save_state=state,
            **SIZE,
        )
    )
    made = latent(server, run, "latent")
    assert (_normal(made) - load_state(state).latent).abs().max() < 1e-3


def _normal(latent: torch.Tensor) -> torch.Tensor:
    """As the model sees it: Wan's mean and deviation of every channel taken out."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (MEAN, STD))
    return (latent - mean) / std


def test_interrupt_ends_within_a_forward_and_the_next_prompt_runs(server, fast):
    def stop(kind: str, data: dict) -> None:
        if kind == "progress" and data["node"] == rollout and data["value"] >= 9:
            server.interrupt()

    rollout = fast.node_id(ROLLOUT)
    run = server.queue(fast.set(PRESET, frames=961).set(ROLLOUT, window=6, sink=3), on_event=stop, timeout=600)
    assert run.interrupted
    assert run.progress(rollout)[-1][0] <= 200
    assert server.queue(fast).outputs


def test_the_1_3b_takes_its_own_shift_and_the_node_says_where_another_is_set(server, fast):
    small = write_toy_shards(server.base / "models/diffusion_models/lingbot-world-v2-1.3b-causal-fast")
    (listed,) = (
        name
        for name in server.object_info(CAUSAL)[CAUSAL]["input"]["required"]["model_name"][1]["options"]
        if name.startswith(small.name)
    )
    assert listed == f"{small.name}/*.safetensors"
    assert server.queue(fast.set(CAUSAL, model_name=small.name).set(PRESET, frames=13)).outputs, "as it was listed once"
    fast = fast.set(CAUSAL, model_name=listed).set(PRESET, frames=13)
    runs = {shift: server.queue(fast.set(ROLLOUT, shift=shift)) for shift in (0.0, 5.0, 10.0)}
    said = {shift: " ".join(text for _, text in run.texts) for shift, run in runs.items()}
    made = {shift: latent(server, run, "latent") for shift, run in runs.items()}
    assert made[0.0].shape[2] == 4
    assert torch.equal(made[0.0], made[5.0])
    assert not torch.equal(made[0.0], made[10.0])
    assert "The shift is 10; LingBot-World 2.0 1.3B was made for 5." in said[10.0]
    assert "shift" not in said[0.0] + said[5.0]
    shutil.rmtree(small)


def test_a_causal_model_may_be_one_file(server, fast):
    file = server.base / "models/diffusion_models/lingbot-world-v2-1.3b-causal-fast-nf4.safetensors"
    shutil.copy(server.base / "models/lingbot_world/toy/lingbot_world_fast/model.safetensors", file)
    run = server.queue(fast.set(CAUSAL, model_name=file.name).set(PRESET, frames=13))
    assert latent(server, run, "latent").shape[2] == 4, "a chunk of 2.0"
    file.unlink()


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "", f"{PACKAGE}/high_noise_model_bnb_nf4", "gone"])
def test_names_of_no_causal_model_are_refused_before_anything_runs(server, fast, name):
    refuses(server, fast.set(CAUSAL, model_name=name), fast.node_id(CAUSAL))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_name": "half"}, "half.model.safetensors"),
        ({"model_name": "odd", "arithmetic": "int8"}, "`arithmetic` int8 takes widths"),
        ({"model_name": "shards-1.3b"}, "1 of its 3 shards missing in .*: model-00002-of-00003"),
        ({"model_name": "wan-1.3b"}, "without camera layers, so a plain Wan model"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_before_anything_runs(server, fast, values, words):
    write_bad_causal_models(server.base / "models" / "diffusion_models")
    refuses(server, fast.set(CAUSAL, **values), fast.node_id(CAUSAL), words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"steps": "custom", "indices": "500, 250"}, "rising numbers"),
        ({"steps": "custom", "indices": "a few"}, "expected numbers such as"),
        ({"steps": "v3"}, "'v3' not in .'as the model was trained'"),
        ({"steps": "v3", "indices": ["number", 0]}, "'v3' not in .'as the model was trained'"),
        ({"frames": 5}, "smaller than min"),
        ({"kv_cache": "disk"}, "disk"),
    ],
)
def test_values_that_make_no_sense_are_refused_before_anything_runs(server, fast, values, words):
    fast = fast.add("number", "PrimitiveString", value="0, 250, 500, 750")
    refuses(server, fast.set(ROLLOUT, **values), fast.node_id(ROLLOUT), words)


@pytest.fixture
def experts() -> ToyPrompt:
    """The base model's workflow with a causal model's loader beside the experts'."""
    return as_toy("first_last").add("causal", CAUSAL, **loader_of("fast", CAUSAL))


def loader_of(name: str, kind: str) -> dict:
    workflow = as_toy(name)
    return workflow[workflow.node_id(kind)]["inputs"]


def with_lora(prompt: ToyPrompt, model: list) -> ToyPrompt:
    """With a LoRA loader behind a model, and one behind that."""
    loader = {"lora_name": "any.safetensors", "strength_model": 1.0}
    return prompt.add("lora", LORA, model=model, **loader).add("loras", LORA, model=["lora", 0], **loader)


@pytest.fixture
def any_lora(server) -> Iterator[None]:
    file = server.base / "models" / "loras" / "any.safetensors"
    file.parent.mkdir(exist_ok=True)
    save_file({"a": torch.zeros(1)}, file)
    yield
    file.unlink()


@pytest.mark.parametrize("model", ["experts", "loras"])
def test_a_base_expert_is_refused_before_anything_runs(server, fast, any_lora, model):
    prompt = fast.add("experts", EXPERTS, **loader_of("first_last", EXPERTS))
    prompt = with_lora(prompt, ["experts", 0]).set(ROLLOUT, model=[model, 0])
    assert (
        "model: this is an expert of the base model" in only_problem(server, prompt, fast.node_id(ROLLOUT))["details"]
    )


@pytest.mark.parametrize("expert", ["high_noise", "low_noise"])
@pytest.mark.parametrize("model", ["causal", "loras"])
def test_a_causal_model_is_refused_on_the_sampler_before_anything_runs(server, experts, any_lora, model, expert):
    prompt = with_lora(experts, ["causal", 0]).set(SAMPLER, **{expert: [model, 0]})
    said = only_problem(server, prompt, experts.node_id(SAMPLER))["details"]
    assert f"{expert}: this is a causal model" in said
    assert "connect it to LingBot-World Rollout" in said


def test_a_causal_model_is_refused_on_the_guider_before_anything_runs(server):
    prompt = as_toy("own_sampler").add("causal", CAUSAL, **loader_of("fast", CAUSAL))
    prompt = prompt.set(GUIDER, low_noise=["causal", 0])
    assert "low_noise: this is a causal model" in only_problem(server, prompt, prompt.node_id(GUIDER))["details"]


def test_a_window_that_its_sink_fills_is_refused_before_anything_runs(server, fast):
    said = only_problem(server, fast.set(ROLLOUT, window=5, sink=3), fast.node_id(ROLLOUT))["details"]
    assert "`window` 5 and `sink` 3: a window holds its sink and a chunk" in said
    prompt = only_second(going_on(fast, seed=1))
    prompt["second"]["inputs"] |= {"window": 5, "sink": 3}
    assert "`window` 5 and `sink` 3" in only_problem(server, prompt, "second")["details"]


def test_nothing_to_begin_with_is_refused_before_anything_runs(server, fast):
    del fast[fast.node_id(ROLLOUT)]["inputs"]["start_image"]
    assert "start_image is missing" in only_problem(server, fast, fast.node_id(ROLLOUT))["details"]


@pytest.mark.parametrize("other", ["start_image", "state"])
def test_a_latent_beside_another_beginning_is_refused_before_anything_runs(server, fast, other):
    prompt = only_second(going_on(fast, seed=1))
    inputs = prompt["second"]["inputs"]
    inputs |= {"start_latent": prompt.link(ROLLOUT), "start_image": prompt.link("LingBotWorldPrepareImage")}
    del inputs["state" if other == "start_image" else "start_image"]
    assert f"start_latent and {other} are both connected" in only_problem(server, prompt, "second")["details"]


def test_a_video_goes_on_from_the_last_frame_of_a_latent(server, fast):
    """To the bit as from that frame, decoded by core's VAE Decode, as start image."""
    prompt = going_on(fast, seed=5)
    values = {name: value for name, value in prompt["second"]["inputs"].items() if name != "state"}
    vae = {"samples": prompt.link(ROLLOUT), "vae": prompt[prompt.node_id(ROLLOUT)]["inputs"]["vae"]}
    prompt = prompt.add("second", ROLLOUT, **values, start_latent=prompt.link(ROLLOUT))
    prompt = prompt.add("frames", "VAEDecode", **vae)
    prompt = prompt.add("last", "ImageFromBatch", image=["frames", 0], batch_index=8, length=1)
    prompt = prompt.add("third", ROLLOUT, **values, start_image=["last", 0])
    prompt = prompt.add("third latent", "SaveLatent", samples=["third", 0], filename_prefix="third")
    run = server.queue(prompt)
    first, second, third = (latent(server, run, name) for name in ("latent", "second latent", "third latent"))
    assert torch.equal(second, third)
    assert not torch.equal(second, first)


def test_a_path_shorter_than_a_chunk_is_refused_before_anything_runs(server, fast):
    """The preset's camera and its frames, either of them alone, and the camera of a shot that goes on."""
    words = "5 frames do not fill a chunk of 3 latent frames: at least 9 are needed"
    short = fast.set(PRESET, frames=5)
    numbered = fast.add("number", "PrimitiveInt", value=5).set(ROLLOUT, frames=["number", 0])
    for prompt in (short, short.set(ROLLOUT, frames=33), numbered):
        assert words in only_problem(server, prompt, fast.node_id(ROLLOUT))["details"]
    going = only_second(going_on(fast, seed=1)).add("still", PRESET, **loader_of("fast", PRESET) | {"frames": 5})
    going["second"]["inputs"] |= {"camera": ["still", 0], "frames": 33}
    assert words in only_problem(server, going, "second")["details"]


def test_a_model_that_is_not_connected_is_told_as_comfyui_tells_it(server, fast):
    del fast[fast.node_id(ROLLOUT)]["inputs"]["model"]
    assert only_problem(server, fast, fast.node_id(ROLLOUT))["details"] == "model"


def test_a_state_goes_on_with_another_window(server, fast):
    prompt = going_on(fast, seed=1)
    prompt["second"]["inputs"]["window"] = 6
    server.queue(prompt)
