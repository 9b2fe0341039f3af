"""LoRA files that ComfyUI's own loader reads in part: all of them acts, or the loader's node names the rest."""

import pytest
import torch
from comfy_server import ComfyServer, Run
from lingbot_world.toy.weights import EXPERT
from safetensors.torch import load_file, save_file
from test_host_server_core_nodes import EXPERTS, SAMPLER, with_node

pytestmark = pytest.mark.host
LAYER = "blocks.1.ffn.0"
STEPS = 2


def halves() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randn(EXPERT.ffn_dim, 4, generator=random), torch.randn(4, EXPERT.dim, generator=random) * 0.02


def write(server: ComfyServer, name: str, tensors: dict, metadata=None) -> str:
    folder = server.base / "models" / "loras"
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / f"{name}.safetensors", metadata=metadata)
    return f"{name}.safetensors"


def with_lora(server: ComfyServer, name: str, tensors: dict, metadata=None) -> tuple[torch.Tensor, str]:
    """The sampler's latent with a LoRA on the high-noise expert, and the texts of the LoRA's node."""
    return run(server, "LoraLoaderModelOnly", lora_name=write(server, name, tensors, metadata))


def run(server: ComfyServer, kind: str, **inputs) -> tuple[torch.Tensor, str]:
    prompt = with_node(server, kind, ("high_noise",), **inputs)
    prompt = prompt.set(SAMPLER, seed=3, steps=STEPS).set(EXPERTS, weight_dtype="fp32").without("SaveVideo")
    prompt = prompt.add("900", "SaveLatent", samples=prompt.link(SAMPLER), filename_prefix="loras/latent")
    done = server.queue(prompt, timeout=1200)
    (path,) = Run(done.prompt_id, {"900": done.outputs["900"]}).files(server.base / "output")
    said = [text for node, text in done.texts if node == "high_noise"]
    return load_file(path)["latent_tensor"], said[-1] if said else ""


@pytest.fixture(scope="module")
def right(comfy_server: ComfyServer) -> torch.Tensor:
    """The latent of the LoRA with its scale of 4 as a tensor."""
    up, down = halves()
    named = {f"{LAYER}.lora_B.weight": up, f"{LAYER}.lora_A.weight": down, f"{LAYER}.alpha": torch.tensor(16.0)}
    found, said = with_lora(comfy_server, "right", {f"diffusion_model.{key}": half for key, half in named.items()})
    assert said == ""
    return found


def test_the_headers_scale_is_applied_and_said(comfy_server, right):
    up, down = halves()
    tensors = {f"diffusion_model.{LAYER}.lora_B.weight": up, f"diffusion_model.{LAYER}.lora_A.weight": down}
    found, said = with_lora(comfy_server, "header", tensors, {"lora_alpha": "16", "r": "4"})
    assert torch.equal(found, right)
    assert "the scale 4 stored with its tensors is applied to 1 weights" in said


def test_scales_that_contradict_each_other_are_said(comfy_server):
    up, down = halves()
    tensors = {f"diffusion_model.{LAYER}.lora_B.weight": up, f"diffusion_model.{LAYER}.lora_A.weight": down}
    _, said = with_lora(comfy_server, "two", tensors, {"lora_alpha": "16", "r": "4", "lora_scale": "2"})
    assert "ComfyUI's loader does not read the scale" in said
    assert "states scale 2, and alpha 16 of rank 4, which is scale 4" in said


def test_names_that_comfyui_does_not_know_are_applied(comfy_server, right):
    up, down = halves()
    tensors = {f"pipe.dit.{LAYER}.lora_B.default.weight": up * 4, f"pipe.dit.{LAYER}.lora_A.default.weight": down}
    found, said = with_lora(comfy_server, "names", tensors)
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    assert f"leaves out 1 of 1 changes ({LAYER}.weight), which are applied here" in said


def test_modulations_are_applied_as_comfyui_applies_their_diff(comfy_server, right):
    up, down = halves()
    named = {f"diffusion_model.{LAYER}.lora_B.weight": up * 4, f"diffusion_model.{LAYER}.lora_A.weight": down}
    part = torch.full((1, 6, EXPERT.dim), 0.05)
    wanted, said = with_lora(comfy_server, "diff", named | {"diffusion_model.blocks.0.modulation.diff": part})
    assert said == ""
    assert not torch.equal(wanted, right)
    found, said = with_lora(comfy_server, "diff_m", named | {"diffusion_model.blocks.0.diff_m": part})
    assert torch.equal(found, wanted)
    assert "leaves out 1 of 2 changes (blocks.0.modulation)" in said


def test_tensors_that_nobody_reads_are_counted(comfy_server):
    up, down = halves()
    named = {f"diffusion_model.{LAYER}.lora_B.weight": up, f"diffusion_model.{LAYER}.lora_A.weight": down}
    more = {f"diffusion_model.blocks.99.ffn.0.lora_{half}.weight": torch.zeros(4, 4) for half in "AB"}
    _, said = with_lora(comfy_server, "more", named | more)
    assert "more.safetensors: 2 of its 4 tensors are left out (diffusion_model.blocks.99" in said


def test_a_matrix_and_halves_of_one_weight_are_both_applied(comfy_server, right):
    up, down = halves()
    named = {f"diffusion_model.{LAYER}.lora_B.weight": up * 2, f"diffusion_model.{LAYER}.lora_A.weight": down}
    found, said = with_lora(comfy_server, "both", named | {f"diffusion_model.{LAYER}.diff": 2 * (up @ down)})
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    assert f"leaves out 1 of 1 changes ({LAYER}.weight), which are applied here" in said


def test_several_loras_in_one_node(comfy_server, right):
    """The scale in a header is applied where a file's tensors show which patches are its own; else a text says so."""
    up, down = halves()
    part = {f"diffusion_model.{LAYER}.lora_B.weight": up, f"diffusion_model.{LAYER}.lora_A.weight": down}
    scaled = write(comfy_server, "scaled", part, {"lora_alpha": "16", "r": "4"})
    zero = {key: torch.zeros_like(half) for key, half in part.items()}
    other = {"lora": write(comfy_server, "zero", zero), "on": True, "strength": 1}
    found, said = run(comfy_server, "TestLoras", lora_1=scaled, lora_2=other)
    torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
    assert "scaled.safetensors: the scale 4 stored with its tensors is applied to 1 weights" in said
    whole = write(comfy_server, "whole", {f"diffusion_model.{LAYER}.diff": up @ down})
    _, said = run(comfy_server, "TestLoras", lora_1=whole, lora_2=other)
    assert "This node loads several LoRAs. Scales in their headers" in said
