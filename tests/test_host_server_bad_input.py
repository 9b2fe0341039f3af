"""Bad input on a real ComfyUI: an error in words on the node it belongs to, and the next prompt runs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from comfy_server import ComfyServer, FailedPromptError, RejectedPromptError
from lingbot_world.loaders.writer import write_expert
from lingbot_world.toy.weights import EXPERT
from safetensors.torch import save_file
from toy_prompt import TOY_HEIGHT, TOY_WIDTH, ToyPrompt, toy_prompt

pytestmark = pytest.mark.host

SAMPLER = "LingBotWorldSampler"
EXPERTS = "LingBotWorldLoadExperts"
TEXT = "LingBotWorldTextEncode"
POSES = "LingBotWorldLoadPoses"
APPLY = "LingBotWorldApplyCamera"
VAE = "LingBotWorldLoadVAE"
OUTSIDE = ["../../secret", "/etc/passwd", "toy/../../../secret", "C:\\secret", "..\\secret", "", "\0"]
HIGH, LOW = "toy/high_noise_model_bnb_nf4", "toy/low_noise_model_bnb_nf4"


@pytest.fixture(scope="module")
def server(comfy_server: ComfyServer) -> Iterator[ComfyServer]:
    """The shared server with files in its model and input folders that are not what they should be."""
    models = comfy_server.base / "models" / "diffusion_models"
    models.mkdir(parents=True, exist_ok=True)
    write_bad_experts(models, comfy_server.base / "models" / "lingbot_world" / "toy")
    write_bad_vaes(comfy_server.base / "models" / "vae", comfy_server.base / "models" / "lingbot_world" / "toy")
    write_bad_poses(comfy_server.base / "input")
    write_bad_loras(comfy_server.base / "models" / "loras")
    yield comfy_server
    assert comfy_server.alive
    assert comfy_server.queue(toy().set(SAMPLER, steps=2)).outputs


def write_bad_experts(models: Path, toy_package: Path) -> None:
    config = replace(EXPERT, control=None)
    for seed, name in enumerate(("plain_high_noise", "plain_low_noise")):
        random_tensors = torch.Generator().manual_seed(seed)
        shapes = config.parameter_shapes().items()
        tensors = ((key, torch.randn(shape, generator=random_tensors) * 0.02) for key, shape in shapes)
        write_expert(models / f"{name}.safetensors", config, tensors, quant_type=None)
    (models / "gguf.safetensors").write_bytes(b"GGUF" + bytes(400))
    save_file({"blocks.0.action_model.keyboard_embed.0.weight": torch.zeros(4, 4)}, models / "matrix_game.safetensors")
    save_file({"text_model.embeddings.weight": torch.zeros(4, 4)}, models / "something_else.safetensors")
    whole = next((toy_package / "high_noise_model_bnb_nf4").glob("*.safetensors")).read_bytes()
    (models / "truncated.safetensors").write_bytes(whole[: len(whole) // 2])


def write_bad_vaes(folder: Path, toy_package: Path) -> None:
    """Half of a VAE, another model's VAE, and a text under a VAE's name."""
    folder.mkdir(exist_ok=True)
    whole = (toy_package / "Wan2.1_VAE.pth").read_bytes()
    (folder / "truncated.pth").write_bytes(whole[: len(whole) // 2])
    save_file({"decoder.conv_in.weight": torch.zeros(4, 4)}, folder / "ae.safetensors")
    (folder / "text.safetensors").write_text("<html>Access to this model is restricted</html>")


def write_bad_loras(folder: Path) -> None:
    """One for a wider model, and one for a model with other layers."""
    folder.mkdir(exist_ok=True)
    width = EXPERT.dim + 32
    for name, layer in (("wide", "blocks.0.self_attn.q"), ("foreign", "transformer_blocks.0.attn.to_q")):
        down, up = torch.zeros(4, width), torch.zeros(width, 4)
        key = f"diffusion_model.{layer}"
        save_file({f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}, folder / f"{name}.safetensors")


def write_bad_poses(folder: Path) -> None:
    still = np.tile(np.eye(4), (9, 1, 1))
    cases = {"few": still[:3], "nan": still * np.nan, "flat": np.zeros((9, 3)), "sheared": still + 0.3}
    for name, poses in cases.items():
        (folder / name).mkdir(exist_ok=True)
        np.save(folder / name / "poses.npy", poses)
        np.save(folder / name / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (9, 1)))


def toy() -> ToyPrompt:
    return toy_prompt().set(SAMPLER, seed=random.randrange(2**32))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (SAMPLER, {"boundary": 1.5}, "boundary"),
        (SAMPLER, {"boundary": -0.1}, "boundary"),
        (SAMPLER, {"steps": 0}, "steps"),
        (SAMPLER, {"solver": "euler"}, "solver"),
        (EXPERTS, {"package": "not there"}, "not there"),
        (EXPERTS, {"high_noise_expert": "gone.safetensors"}, "gone.safetensors"),
        (TEXT, {"text_encoder": "gone.pth"}, "gone.pth"),
        (VAE, {"vae_name": "gone.pth"}, "gone.pth"),
        (POSES, {"poses": "gone"}, "gone"),
    ],
)
def test_values_and_missing_files_are_refused_before_anything_runs(server, kind, changes, words):
    prompt = toy().set(kind, **changes)
    with pytest.raises(RejectedPromptError) as refused:
        server.queue(prompt)
    assert list(refused.value.node_errors) == [prompt.node_id(kind)]
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "name", ["../../secret", "/etc/passwd", "toy/../../../secret", "C:\\secret", "..\\secret", "", "\0"]
)
@pytest.mark.parametrize(
    ("kind", "widget"),
    [
        (EXPERTS, "package"),
        (EXPERTS, "high_noise_expert"),
        (EXPERTS, "low_noise_expert"),
        (TEXT, "text_encoder"),
        (TEXT, "tokenizer"),
        (VAE, "vae_name"),
        (POSES, "poses"),
        (POSES, "lens"),
    ],
)
def test_names_outside_the_model_and_input_folders_are_refused(server, kind, widget, name):
    prompt = toy().set(kind, **{widget: name})
    with pytest.raises(RejectedPromptError) as refused:
        server.queue(prompt)
    assert list(refused.value.node_errors) == [prompt.node_id(kind)]
    assert "root:" not in str(refused.value)


@pytest.mark.parametrize("name", ["linked", "linked_file", "linked/poses.npy", "linked_lens"])
def test_links_that_leave_the_input_folder_are_refused(server, tmp_path, name):
    still = np.tile(np.eye(4), (9, 1, 1))
    np.save(tmp_path / "poses.npy", still)
    np.save(tmp_path / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (9, 1)))
    folder = server.base / "input" / name.partition("/")[0]
    if folder.name == "linked":
        folder.unlink(missing_ok=True)
        folder.symlink_to(tmp_path, target_is_directory=True)
    else:
        folder.mkdir()
        for file, linked in (("poses.npy", "linked_file"), ("intrinsics.npy", "linked_lens")):
            if name == linked:
                (folder / file).symlink_to(tmp_path / file)
            else:
                np.save(folder / file, np.load(tmp_path / file))
    with pytest.raises(RejectedPromptError, match=r"was not found|leaves ComfyUI's input folder"):
        server.queue(toy().set(POSES, poses=name))


@pytest.mark.parametrize(
    ("high", "low", "words"),
    [
        (HIGH, HIGH, "same weights"),
        (LOW, HIGH, "swapped"),
        ("gguf.safetensors", LOW, "GGUF"),
        ("matrix_game.safetensors", LOW, "Matrix-Game"),
        ("something_else.safetensors", LOW, "expected a LingBot-World expert"),
        ("truncated.safetensors", LOW, "truncated.safetensors"),
        ("plain_high_noise.safetensors", LOW, "different architectures"),
    ],
)
def test_checkpoints_that_are_not_a_pair_of_experts_fail_on_the_loader(server, high, low, words):
    prompt = toy().set(EXPERTS, high_noise_expert=high, low_noise_expert=low)
    with pytest.raises(RejectedPromptError, match=words) as refused:
        server.queue(prompt)
    assert list(refused.value.node_errors) == [prompt.node_id(EXPERTS)]
    assert "ModelConfig(" not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "words"),
    [("truncated.pth", "truncated.pth"), ("ae.safetensors", "not a Wan VAE"), ("text.safetensors", "text.safetensors")],
)
def test_a_file_that_is_no_wan_vae_is_refused_before_anything_runs(server, file, words):
    prompt = toy().set(VAE, vae_name=file)
    with pytest.raises(RejectedPromptError, match=words) as refused:
        server.queue(prompt)
    (problem,) = refused.value.node_errors[prompt.node_id(VAE)]["errors"]
    assert "zlib" not in problem["details"]


@pytest.mark.parametrize(("kind", "widget"), [(TEXT, "text_encoder"), (VAE, "vae_name"), (POSES, "poses")])
def test_one_fault_is_one_message_on_its_input(server, kind, widget):
    prompt = toy().set(kind, **{widget: "gone"})
    with pytest.raises(RejectedPromptError) as refused:
        server.queue(prompt)
    (problem,) = refused.value.node_errors[prompt.node_id(kind)]["errors"]
    assert problem["extra_info"]["input_name"] == widget


@pytest.mark.parametrize(
    "changes",
    [
        {"package": "gone"},
        {"high_noise_expert": "gone"},
        {"low_noise_expert": "gone"},
        {"package": "none (choose both experts)", "high_noise_expert": "gone", "low_noise_expert": "gone too"},
        {"package": "none (choose both experts)"},
        {"high_noise_expert": HIGH, "low_noise_expert": HIGH},
    ],
)
def test_one_fault_of_the_experts_is_one_message(server, changes):
    prompt = toy().set(EXPERTS, **changes)
    with pytest.raises(RejectedPromptError) as refused:
        server.queue(prompt)
    (problem,) = refused.value.node_errors[prompt.node_id(EXPERTS)]["errors"]
    assert all(f"{name!r} was not found" in problem["details"] for name in changes.values() if "gone" in name)


@pytest.mark.parametrize("changes", [{"source": "gone"}, {"name": "../out"}, {"lora": "gone"}])
def test_one_fault_of_a_quantization_is_one_message(server, changes):
    values = {"source": HIGH, "name": "new", "search": False, "t5": False, "lora": "none", "lora_strength": 1.0}
    with pytest.raises(RejectedPromptError) as refused:
        server.queue({"1": {"class_type": "LingBotWorldQuantize", "inputs": values | changes}})
    assert len(refused.value.node_errors["1"]["errors"]) == 1


@pytest.mark.parametrize("role", ["high", "low"])
def test_a_missing_expert_is_called_by_its_role(server, role):
    with pytest.raises(RejectedPromptError, match=f"the {role}-noise expert 'gone' was not found"):
        server.queue(toy().set(EXPERTS, **{f"{role}_noise_expert": "gone"}))


def test_a_prompt_that_is_cut_and_lens_rows_that_are_dropped_are_said_on_their_nodes(server):
    example = server.base / "models/lingbot_world/toy/example"
    odd = server.base / "input" / "odd_lens"
    odd.mkdir(exist_ok=True)
    shutil.copy(example / "poses.npy", odd)
    np.save(odd / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (7, 1)))
    prompt = toy().set(SAMPLER, steps=1)
    run = server.queue(prompt.set(TEXT, prompt="a tree " * 600).set(POSES, poses="odd_lens"))
    said = {node: text for node, text in run.texts if text}
    assert "the text encoder takes 512: the last" in said[prompt.node_id(TEXT)]
    assert "has 7 rows" in said[prompt.node_id(POSES)]


def test_a_camera_on_experts_without_camera_layers_is_an_error(server):
    plain = {f"{level}_noise_expert": f"plain_{level}_noise.safetensors" for level in ("high", "low")}
    with pytest.raises(FailedPromptError, match="camera") as failed:
        server.queue(toy().set(EXPERTS, **plain))
    assert failed.value.node_type == SAMPLER


def test_plain_experts_run_without_a_camera(server):
    plain = {f"{level}_noise_expert": f"plain_{level}_noise.safetensors" for level in ("high", "low")}
    prompt = toy().set(EXPERTS, **plain)
    video = prompt.node_id("WanImageToVideo")
    assert server.queue(prompt.set(SAMPLER, positive=[video, 0], negative=[video, 1])).outputs


@pytest.mark.parametrize("poses", ["few", "nan", "flat", "sheared"])
def test_bad_poses_fail_on_their_node(server, poses):
    prompt = toy().set(POSES, poses=poses)
    with pytest.raises(RejectedPromptError, match="poses") as refused:
        server.queue(prompt)
    assert list(refused.value.node_errors) == [prompt.node_id(POSES)]


def test_a_camera_of_another_length_than_the_latent_is_refused_on_its_node(server):
    prompt = toy().set("WanImageToVideo", length=17)
    with pytest.raises(RejectedPromptError, match="wire the camera's frames") as refused:
        server.queue(prompt)
    assert list(refused.value.node_errors) == [prompt.node_id(APPLY)]


def test_a_latent_of_another_size_than_the_camera_fails_before_sampling(server):
    prompt = toy().add(
        "900", "EmptyHunyuanLatentVideo", width=TOY_WIDTH + 32, height=TOY_HEIGHT, length=9, batch_size=1
    )
    with pytest.raises(FailedPromptError, match="camera") as failed:
        server.queue(prompt.set(SAMPLER, latent=["900", 0]))
    assert failed.value.node_type == SAMPLER


def test_a_latent_of_another_size_than_the_start_image_fails_before_weights_are_loaded(server):
    video = toy().node_id("WanImageToVideo")
    without_camera = toy().set(SAMPLER, positive=[video, 0], negative=[video, 1], latent=["900", 0])
    size = {"height": TOY_HEIGHT, "batch_size": 1}
    longer = without_camera.add("900", "EmptyHunyuanLatentVideo", **size, width=TOY_WIDTH, length=17)
    with pytest.raises(FailedPromptError, match="17 frames, the start image was prepared for .* 9 frames") as failed:
        server.queue(longer)
    assert failed.value.node_type == SAMPLER
    wider = without_camera.add("900", "EmptyHunyuanLatentVideo", **size, width=TOY_WIDTH + 32, length=9)
    assert "start image, prepared for 96x64 with 9 frames, is stretched" in server.queue(wider).texts[0][1]


def test_a_latent_of_images_fails_in_words(server):
    prompt = toy().add("900", "EmptyLatentImage", width=TOY_WIDTH, height=TOY_HEIGHT, batch_size=1)
    with pytest.raises(FailedPromptError, match="WanImageToVideo") as failed:
        server.queue(prompt.set(APPLY, latent=["900", 0]))
    assert failed.value.node_type == APPLY


@pytest.mark.parametrize(
    ("lora", "words"),
    [("wide", r"self_attn.q.weight is \[288, 288\] in the LoRA and \[256, 256\]"), ("foreign", "none of this LoRA")],
)
def test_a_lora_for_another_model_is_refused_once_on_its_loader(server, lora, words):
    prompt = toy()
    prompt = prompt.add(
        "900", "LoraLoaderModelOnly", model=prompt.link(EXPERTS), lora_name=f"{lora}.safetensors", strength_model=1.0
    )
    with pytest.raises(FailedPromptError, match=words) as failed:
        server.queue(prompt.set(SAMPLER, high_noise=["900", 0]))
    assert failed.value.node_type == "LoraLoaderModelOnly"


def test_one_expert_on_both_sockets_is_refused(server):
    prompt = toy()
    with pytest.raises(FailedPromptError, match="same model") as failed:
        server.queue(prompt.set(SAMPLER, low_noise=prompt.link(EXPERTS, 0)))
    assert failed.value.node_type == SAMPLER


def test_swapped_experts_are_refused_before_sampling(server):
    prompt = toy()
    high, low = prompt.link(EXPERTS, 0), prompt.link(EXPERTS, 1)
    with pytest.raises(FailedPromptError, match="experts are swapped.*high_noise") as failed:
        server.queue(prompt.set(SAMPLER, high_noise=low, low_noise=high))
    assert failed.value.node_type == SAMPLER


def test_text_wired_past_the_start_image_is_warned_of_on_the_sampler(server):
    prompt = toy().set(SAMPLER, steps=2)
    past = prompt.set(APPLY, positive=prompt.link(TEXT, 0), negative=prompt.link(TEXT, 1))
    half = past.set(APPLY, positive=prompt[prompt.node_id(APPLY)]["inputs"]["positive"])
    without_guidance = half.set(SAMPLER, cfg_high=1.0, cfg_low=1.0)
    shown = [server.queue(case).texts for case in (past, half, without_guidance, prompt)]
    words = [[(node, text.split(":")[0]) for node, text in texts] for texts in shown]
    sampler = prompt.node_id(SAMPLER)
    assert words == [
        [(sampler, "No start image in positive and negative")],
        [(sampler, "No start image in negative")],
        [(sampler, "")],  # the warning goes away
        [],
    ]
