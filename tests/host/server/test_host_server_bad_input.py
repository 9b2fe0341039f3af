"""Bad files, names and values on a real ComfyUI: an error in words on the node it belongs to, before anything runs, and
the next prompt runs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from comfy_server import RejectedPromptError
from refused_prompts import refuses
from toy_prompt import ToyPrompt, fresh_toy

pytestmark = pytest.mark.host

SAMPLER = "LingBotWorldSampler"
EXPERTS = "LingBotWorldLoadExperts"
TEXT = "LingBotWorldTextEncode"
POSES = "LingBotWorldLoadPoses"
VAE = "LingBotWorldLoadVAE"
OUTSIDE = ["../../secret", "/etc/passwd", "toy/../../../secret", "C:\\secret", "..\\secret", "", "\0"]
HIGH, LOW = "toy/high_noise_model_bnb_nf4", "toy/low_noise_model_bnb_nf4"


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
def test_values_and_missing_files_are_refused_before_anything_runs(spoilt, kind, changes, words):
    prompt = fresh_toy().set(kind, **changes)
    assert words in str(refuses(spoilt, prompt, prompt.node_id(kind)))


@pytest.mark.parametrize("name", OUTSIDE)
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
def test_names_outside_the_model_and_input_folders_are_refused(spoilt, kind, widget, name):
    prompt = fresh_toy().set(kind, **{widget: name})
    assert "root:" not in str(refuses(spoilt, prompt, prompt.node_id(kind)))


@pytest.mark.parametrize("name", ["linked", "linked_file", "linked/poses.npy", "linked_lens"])
def test_links_that_leave_the_input_folder_are_refused(spoilt, tmp_path, name):
    still = np.tile(np.eye(4), (9, 1, 1))
    np.save(tmp_path / "poses.npy", still)
    np.save(tmp_path / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (9, 1)))
    folder = spoilt.base / "input" / name.partition("/")[0]
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
        spoilt.queue(fresh_toy().set(POSES, poses=name))


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
def test_checkpoints_that_are_not_a_pair_of_experts_fail_on_the_loader(spoilt, high, low, words):
    prompt = fresh_toy().set(EXPERTS, high_noise_expert=high, low_noise_expert=low)
    assert "ModelConfig(" not in str(refuses(spoilt, prompt, prompt.node_id(EXPERTS), words))


@pytest.mark.parametrize(
    ("file", "words"),
    [("truncated.pth", "truncated.pth"), ("ae.safetensors", "not a Wan VAE"), ("text.safetensors", "text.safetensors")],
)
def test_a_file_that_is_no_wan_vae_is_refused_before_anything_runs(spoilt, file, words):
    prompt = fresh_toy().set(VAE, vae_name=file)
    with pytest.raises(RejectedPromptError, match=words) as refused:
        spoilt.queue(prompt)
    (problem,) = refused.value.node_errors[prompt.node_id(VAE)]["errors"]
    assert "zlib" not in problem["details"]


@pytest.mark.parametrize(("kind", "widget"), [(TEXT, "text_encoder"), (VAE, "vae_name"), (POSES, "poses")])
def test_one_fault_is_one_message_on_its_input(spoilt, kind, widget):
    prompt = fresh_toy().set(kind, **{widget: "gone"})
    with pytest.raises(RejectedPromptError) as refused:
        spoilt.queue(prompt)
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
def test_one_fault_of_the_experts_is_one_message(spoilt, changes):
    prompt = fresh_toy().set(EXPERTS, **changes)
    with pytest.raises(RejectedPromptError) as refused:
        spoilt.queue(prompt)
    (problem,) = refused.value.node_errors[prompt.node_id(EXPERTS)]["errors"]
    assert all(f"{name!r} was not found" in problem["details"] for name in changes.values() if "gone" in name)


@pytest.mark.parametrize("changes", [{"source": "gone"}, {"name": "../out"}, {"lora": "gone"}])
def test_one_fault_of_a_quantization_is_one_message(spoilt, changes):
    values = {"source": HIGH, "name": "new", "search": False, "t5": False, "lora": "none", "lora_strength": 1.0}
    with pytest.raises(RejectedPromptError) as refused:
        spoilt.queue({"1": {"class_type": "LingBotWorldQuantize", "inputs": values | changes}})
    assert len(refused.value.node_errors["1"]["errors"]) == 1


@pytest.mark.parametrize("role", ["high", "low"])
def test_a_missing_expert_is_called_by_its_role(spoilt, role):
    with pytest.raises(RejectedPromptError, match=f"the {role}-noise expert 'gone' was not found"):
        spoilt.queue(fresh_toy().set(EXPERTS, **{f"{role}_noise_expert": "gone"}))


def test_a_prompt_that_is_cut_and_lens_rows_that_are_dropped_are_said_on_their_nodes(spoilt):
    example = spoilt.base / "models/lingbot_world/toy/example"
    odd = spoilt.base / "input" / "odd_lens"
    odd.mkdir(exist_ok=True)
    shutil.copy(example / "poses.npy", odd)
    np.save(odd / "intrinsics.npy", np.tile([500.0, 500.0, 416.0, 240.0], (7, 1)))
    prompt = fresh_toy().set(SAMPLER, steps=1)
    run = spoilt.queue(prompt.set(TEXT, prompt="a tree " * 600).set(POSES, poses="odd_lens"))
    said = {node: text for node, text in run.texts if text}
    assert "the text encoder takes 512: the last" in said[prompt.node_id(TEXT)]
    assert "has 7 rows" in said[prompt.node_id(POSES)]


@pytest.mark.parametrize("poses", ["few", "nan", "flat", "sheared"])
def test_bad_poses_fail_on_their_node(spoilt, poses):
    prompt = fresh_toy().set(POSES, poses=poses)
    refuses(spoilt, prompt, prompt.node_id(POSES), "poses")


def test_files_that_a_run_needs_not_are_no_warnings_in_the_log(comfy_server):
    """ComfyUI asks every node of a prompt whether it has changed, also where one node alone is run."""
    gone, names = "gone/gone.safetensors", {"LingBotWorldLoadCausal": "model_name", "LingBotWorldLoadVAE": "vae_name"}
    names |= {"LingBotWorldTextEncode": "text_encoder", "LingBotWorldLoadExperts": "package"}
    names |= {"LingBotWorldLoadPoses": "poses", "LingBotWorldCameraImport": "file", "LingBotWorldLoadState": "file"}
    prompt = ToyPrompt()
    for number, (kind, name) in enumerate(names.items()):
        inputs = comfy_server.object_info(kind)[kind]["input"]
        fields = {**inputs["required"], **inputs.get("optional", {})}
        values = {key: _first(*spec) for key, spec in fields.items()}
        prompt = prompt.add(str(number), kind, **{**values, name: gone})
    prompt = prompt.add("toy", "LingBotWorldToyPackage")
    before = len(comfy_server.log())
    comfy_server.post("/prompt", {"prompt": prompt, "partial_execution_targets": ["toy"]})
    comfy_server.queue(ToyPrompt().add("toy", "LingBotWorldToyPackage"))
    assert "WARNING" not in comfy_server.log()[before:]


def _first(kind: str | list, options: dict | None = None) -> object:
    """The value that the canvas gives a new field."""
    choices = kind if isinstance(kind, list) else (options or {}).get("options", [])
    return (options or {}).get("default") or next(iter(choices), "")
