"""ComfyUI on bad days: out of GPU memory, a failing disk, a full one, missing rights. The node says so in words, models
are freed, and the next prompt makes the frames that it made before."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from comfy_server import ComfyServer, FailedPromptError, RejectedPromptError, Run
from refused_prompts import fails
from safetensors.torch import load_file
from toy_prompt import ToyPrompt, as_toy, toy_prompt

pytestmark = pytest.mark.host

SAMPLER, ROLLOUT, EXPERTS = "LingBotWorldSampler", "LingBotWorldRollout", "LingBotWorldLoadExperts"
PATCHER = {"module": ".host.model.patcher", "owner": "ExactPatches", "name": "load", "error": "memory"}
FORWARD = {"module": ".host.model.transformer", "owner": "HostModel", "name": "forward", "error": "memory"}
DECODE = {"module": "comfy.ldm.wan.vae", "owner": "WanVAE", "name": "decode", "error": "memory"}


@pytest.fixture
def faulty(server: ComfyServer) -> Iterator[Callable[..., None]]:
    """`faulty(...)` asks for a fault (see faults_pack); it is mended at the end."""
    yield lambda **fault: server.post("/lingbot_fault", fault)
    server.post("/lingbot_fault", {})


def base_model() -> ToyPrompt:
    prompt = toy_prompt().set(SAMPLER, seed=1)
    return prompt.add("latent", "SaveLatent", samples=prompt.link(SAMPLER), filename_prefix="fault")


def causal_model() -> ToyPrompt:
    prompt = as_toy("fast").set("LingBotWorldPrepareImage", width=64, height=48).set(ROLLOUT, seed=1)
    return prompt.add("latent", "SaveLatent", samples=prompt.link(ROLLOUT), filename_prefix="fault")


def latent(server: ComfyServer, prompt: ToyPrompt) -> torch.Tensor:
    run = server.queue(prompt)
    (path,) = Run(run.prompt_id, {"latent": run.outputs["latent"]}).files(server.base / "output")
    return load_file(path)["latent_tensor"]


def mapped_models(server: ComfyServer) -> set[str]:
    """Model files that the server has mapped or open."""
    process = Path(f"/proc/{server.process.pid}")
    lines = process.joinpath("maps").read_text().splitlines()
    for entry in process.joinpath("fd").iterdir():
        with suppress(FileNotFoundError):  # the server has closed it meanwhile
            lines.append(str(entry.readlink()))
    models = str(server.base / "models")
    return {models + line.split(models)[1] for line in lines if models in line}


@pytest.mark.parametrize(
    ("prompt", "fault", "node"),
    [
        (base_model, PATCHER, SAMPLER),
        (base_model, PATCHER | {"first": 2}, SAMPLER),
        (base_model, FORWARD | {"first": 3}, SAMPLER),
        (base_model, DECODE, "VAEDecode"),
        (causal_model, PATCHER, ROLLOUT),
        (causal_model, FORWARD | {"first": 3}, ROLLOUT),
        (causal_model, DECODE, ROLLOUT),
    ],
    ids=["load", "switch", "step", "decode", "causal load", "causal step", "causal decode"],
)
def test_out_of_gpu_memory_is_said_and_the_next_prompt_has_the_same_bits(server, faulty, prompt, fault, node):
    want = latent(server, prompt())
    server.free()
    faulty(**fault)
    fails(server, prompt(), node, "ran out of memory on your GPU")
    faulty()
    assert torch.equal(latent(server, prompt()), want)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("prompt", [base_model, causal_model])
def test_no_model_file_stays_open_when_models_are_unloaded(server, faulty, prompt):
    """On Windows a file that is mapped cannot be deleted."""
    server.free()
    latent(server, prompt())
    assert mapped_models(server)
    server.free()
    assert mapped_models(server) == set()
    faulty(**FORWARD, first=3)
    with pytest.raises(FailedPromptError):
        server.queue(prompt())
    server.free()
    assert mapped_models(server) == set()


def test_a_file_without_rights_is_named_before_anything_runs(server, faulty):
    weights = server.base / "models/lingbot_world/toy/high_noise_model_bnb_nf4/model.safetensors"
    weights.touch()
    faulty(module="pathlib", owner="Path", name="open", error="rights", match=str(weights))
    with pytest.raises((RejectedPromptError, FailedPromptError), match=r"model\.safetensors.*ermission denied"):
        server.queue(base_model())
    faulty()
    assert latent(server, base_model()).std() > 0.1


def test_a_disk_that_fails_while_an_expert_is_opened_is_said_on_the_loader(server, faulty):
    (server.base / "models/lingbot_world/toy/high_noise_model_bnb_nf4/model.safetensors").touch()
    faulty(module=".weights.tensors", name="_read_header", error="disk")
    with pytest.raises(RejectedPromptError, match=r"model\.safetensors: cannot be read \(Input/output error\)") as bad:
        server.queue(base_model())
    assert list(bad.value.node_errors) == [base_model().node_id(EXPERTS)]
    faulty()
    assert latent(server, base_model()).std() > 0.1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            {"module": ".weights.tensors", "owner": "MappedFile", "name": "open", "error": "reads", "first": 9},
            r"umt5_16_bit\.safetensors: cannot be read \(Input/output error\)",
        ),
        (
            {"module": ".quantize.writer", "owner": "TensorFile", "name": "write", "error": "full", "first": 9},
            "No space left on device. Mend that and run it again",
        ),
    ],
    ids=["disk", "full"],
)
def test_quantizing_goes_on_after_a_disk_that_failed_or_was_full(server, faulty, fault, words):
    """A text encoder in safetensors: what is read is in the reader's hands."""
    packages = server.base / "models" / "lingbot_world"
    source = write_text_encoder(server.base / "models" / "text_encoders" / "umt5_16_bit.safetensors", packages / "toy")
    node = {"source": source, "name": "after-a-fault", "search": False, "t5": False}
    prompt = {"1": {"class_type": "LingBotWorldQuantize", "inputs": node}}
    faulty(**fault)
    with pytest.raises(FailedPromptError, match=words):
        server.queue(prompt)
    assert not (packages / "after-a-fault").exists()
    faulty()
    assert server.queue(prompt).outputs
    assert (packages / "after-a-fault").is_dir()
    shutil.rmtree(packages / "after-a-fault")
    (server.base / "models" / "text_encoders" / source).unlink()


def write_text_encoder(file: Path, toy: Path) -> str:
    from safetensors.torch import save_file

    file.parent.mkdir(exist_ok=True)
    save_file(torch.load(toy / "models_t5_umt5-xxl-enc-bf16.pth", weights_only=True), file)
    return file.name
