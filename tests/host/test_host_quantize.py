"""Quantize LingBot-World on a real ComfyUI: what it lists, makes, refuses, and that it goes on after an interrupt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from comfy_server import ComfyServer, Run
from lingbot_world import __version__
from lingbot_world.quantize.writer import config_json, write_json
from lingbot_world.toy.experts import write_expert
from lingbot_world.toy.weights import EXPERT, expert_tensors
from quantize_cases import run as quantize
from refused_prompts import fails, refuses
from safetensors.torch import load_file
from toy_prompt import ToyPrompt, toy_prompt

pytestmark = pytest.mark.host

NODE = "LingBotWorldQuantize"
SAMPLER = "LingBotWorldSampler"
SOURCE, RESULT = "official", "made by the node, ü"


@pytest.fixture(scope="module")
def server(comfy_server: ComfyServer) -> Iterator[ComfyServer]:
    """The shared server with a package of 16-bit experts beside the toy package, and damaged copies of it."""
    models = comfy_server.base / "models"
    packages, before = models / "lingbot_world", set((models / "lingbot_world").iterdir())
    write_official_package(packages / SOURCE, packages / "toy")
    shutil.copytree(packages / SOURCE / "high_noise_model", models / "diffusion_models" / "torn")
    damage(models / "diffusion_models" / "torn")
    yield comfy_server
    for folder in {*packages.iterdir()} - before:
        shutil.rmtree(folder)
    shutil.rmtree(models / "diffusion_models" / "torn")


def write_official_package(folder: Path, toy: Path) -> None:
    for seed, role in enumerate(("high", "low")):
        expert = folder / f"{role}_noise_model"
        expert.mkdir(parents=True)
        write_expert(expert / "diffusion_pytorch_model.safetensors", EXPERT, expert_tensors(seed + 70), quant_type=None)
        write_json(expert / "config.json", config_json(EXPERT))
    for part in ("models_t5_umt5-xxl-enc-bf16.pth", "Wan2.1_VAE.pth"):
        shutil.copy(toy / part, folder)
    shutil.copytree(toy / "tokenizer", folder / "tokenizer")


def damage(expert: Path) -> None:
    file = expert / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-5000])


def prompt(**inputs) -> dict:
    given = {"source": SOURCE, "name": RESULT, "search": False, "t5": False} | inputs
    return {"1": {"class_type": NODE, "inputs": given}}


def choices(server: ComfyServer, node: str, widget: str) -> list[str]:
    """What the widget offers after R."""
    spec = server.object_info(node)[node]["input"]["required"][widget]
    return spec[1]["options"] if spec[0] == "COMBO" else spec[0]


def bytes_of(folder: Path) -> dict[str, bytes | dict]:
    """The content of the files. ComfyUI has a torch of its own, and sums errors with fewer threads."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name in files:
        if name.endswith("_meta.json"):
            files[name] = meta = json.loads(files[name])
            assert meta.pop("versions")["lingbot-world"] == __version__
            meta["relative_rms"] = {layer: round(error, 5) for layer, error in meta["relative_rms"].items()}
    return files


def test_only_models_that_are_not_in_four_bits_are_listed(server):
    listed = choices(server, NODE, "source")
    assert {
        SOURCE,
        f"{SOURCE}/high_noise_model/diffusion_pytorch_model.safetensors",
        "toy/models_t5_umt5-xxl-enc-bf16.pth",
    } <= set(listed)
    assert "torn/diffusion_pytorch_model.safetensors" in listed  # damaged: choosing it says so
    assert not [name for name in listed if "bnb_nf4" in name or name in ("toy", "toy/lingbot_world_fast")]


@pytest.fixture(scope="module")
def made(server: ComfyServer) -> Run:
    return server.queue(prompt())


def test_the_result_is_the_command_s_and_the_report_is_on_the_node(server, made, tmp_path):
    packages = server.base / "models" / "lingbot_world"
    quantize(packages / SOURCE, tmp_path / "by command")
    assert bytes_of(packages / RESULT) == bytes_of(tmp_path / "by command")
    (text,) = made.outputs["1"]["text"]
    assert made.texts[-1] == ("1", text)
    assert f"{packages / RESULT} is ready. Press R" in text
    assert text.count(" weights in 4 bits, relative error 0.0") == 2
    assert text.count("\n  0.0") == 20
    values = [value / top for value, top in made.progress("1")]
    assert values[-1] == 1
    assert len(set(values)) > 3  # ComfyUI passes on a few a second


def test_the_loaders_list_the_result_and_it_samples_the_command_s_bits(server, made, tmp_path):
    assert RESULT in choices(server, "LingBotWorldLoadExperts", "package")
    assert RESULT not in choices(server, NODE, "source")
    quantize(server.base / "models/lingbot_world" / SOURCE, tmp_path / "by-command")
    shutil.move(tmp_path / "by-command", server.base / "models/lingbot_world/by-command")
    latents = [sampled(server, package) for package in (RESULT, "by-command")]
    assert latents[0].std() > 0.1
    assert (latents[0] == latents[1]).all()


def sampled(server: ComfyServer, package: str):
    toy = toy_prompt().set(SAMPLER, seed=5).set("LingBotWorldLoadExperts", package=package)
    run = server.queue(ToyPrompt(toy).add("900", "SaveLatent", samples=toy.link(SAMPLER), filename_prefix="latent"))
    (path,) = Run(run.prompt_id, {"900": run.outputs["900"]}).files(server.base / "output")
    return load_file(path)["latent_tensor"]


def test_an_interrupt_leaves_what_is_done_and_the_next_prompt_completes_it(server, made):
    def stop(kind: str, data: dict) -> None:
        if kind == "progress" and data["node"] == "1":
            server.interrupt()

    packages = server.base / "models" / "lingbot_world"
    stopped = server.queue(prompt(name="stopped"), on_event=stop)
    assert stopped.interrupted
    assert not (packages / "stopped").exists()
    assert (packages / "stopped.part/high_noise_model_bnb_nf4/model.safetensors.journal").stat().st_size > 1000
    assert not [name for name in choices(server, "LingBotWorldLoadExperts", "package") if "stopped" in name]
    server.queue(prompt(name="stopped"))
    assert not (packages / "stopped.part").exists()
    assert bytes_of(packages / "stopped") == bytes_of(packages / RESULT)


def test_an_expert_by_itself_is_listed_by_the_loader(server, tmp_path):
    server.queue(prompt(source=f"{SOURCE}/high_noise_model", name="one"))
    assert "one/model.safetensors" in choices(server, "LingBotWorldLoadExperts", "high_noise_expert")


def test_a_text_encoder_by_itself_is_listed_and_runs(server):
    server.queue(prompt(source="toy/models_t5_umt5-xxl-enc-bf16.pth", name="t5"))
    name = "t5/models_t5_umt5-xxl-enc-bnb_nf4.safetensors"
    assert name in choices(server, "LingBotWorldTextEncode", "text_encoder")
    assert server.queue(toy_prompt().set("LingBotWorldTextEncode", text_encoder=name)).outputs


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"name": "toy"}, "exists already"),
        ({"name": "../outside"}, "not a name inside"),
        ({"name": "/etc/outside"}, "not a name inside"),
        ({"name": "C:\\outside"}, "not a name inside"),
        ({"name": ""}, "not a name inside"),
        ({"name": "a/b/c"}, "at most two folders"),
        ({"name": "con"}, "on every system"),
        ({"name": "what?"}, "on every system"),
        ({"name": "ü" * 130}, "too long"),
        ({"source": "../../secret"}, "not a name inside"),
        ({"source": "gone"}, "was not found"),
        ({"source": "toy"}, "nf4 already"),
        ({"source": "torn"}, "truncated or corrupt"),
        ({"source": "torn", "lora": "gone.safetensors"}, "was not found"),
        ({"lora": "../../secret"}, "not a name inside"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(server, inputs, words):
    packages = server.base / "models" / "lingbot_world"
    before = set(packages.rglob("*"))
    refuses(server, prompt(**{"name": "new", **inputs}), "1", words)
    assert set(packages.rglob("*")) == before


def test_numbers_that_are_not_finite_are_one_sentence_on_the_node(server):
    expert = server.base / "models/lingbot_world/nan/high_noise_model"
    shutil.copytree(server.base / "models/lingbot_world" / SOURCE / "high_noise_model", expert)
    file = expert / "diffusion_pytorch_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-400_000:-399_000] = b"\xff" * 1000
    file.write_bytes(content)
    broken = prompt(source="nan/high_noise_model", name="from-nan")
    fails(server, broken, NODE, r"holds NaN or infinity.*download it again")
    assert server.queue(toy_prompt().set(SAMPLER, steps=2)).outputs
