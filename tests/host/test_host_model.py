"""Nodes, model folders, loading and the hooks of other packs, on a real ComfyUI."""

import shutil
from pathlib import Path

import pytest
import torch
from host_runner import Report, run_checks
from safetensors.torch import save_file

pytestmark = pytest.mark.host


def _lay_out(base: Path, golden: Path) -> None:
    """Two packages (one in a place that only extra_model_paths.yaml knows) and loose files of many kinds."""
    for package in (base / "models/lingbot_world/toy", base / "extra/worlds/elsewhere"):
        for role in ("high", "low"):
            shutil.copytree(golden / f"nf4/{role}_noise_model_bnb_nf4", package / f"{role}_noise_model_bnb_nf4")
        shutil.copytree(golden / "t5/tokenizer", package / "tokenizer")
        shutil.copy(golden / "t5/t5_encoder_fp32.pth", package / "models_t5_umt5-xxl-enc-bf16.pth")
        (package / "Wan2.1_VAE.pth").touch()
    (base / "extra.yaml").write_text(f"mine:\n  base_path: {base / 'extra'}\n  lingbot_world: worlds\n")
    for name in ("text_encoders", "vae", "diffusion_models/official"):
        (base / "models" / name).mkdir(parents=True)
    models = base / "models" / "diffusion_models"
    for part in ("00001-of-00002", "00002-of-00002"):
        (models / "official" / f"diffusion_pytorch_model-{part}.safetensors").touch()
        (models / f"flat-{part}.safetensors").touch()
    (base / "models/lingbot_world/toy/low_noise_bf16.safetensors").touch()
    shutil.copytree(golden / "nf4/high_noise_model_bnb_nf4", models / "folder")
    shutil.copy(golden / "model/high_noise_model_fp32.safetensors", models / "single.safetensors")
    (models / "wan.pt").write_bytes(b"GGUF" + bytes(64))
    save_file({"blocks.0.ffn.0.lora_A.weight": torch.zeros(4, 64)}, models / "lora.safetensors")
    (base / "models/text_encoders/loose_t5.safetensors").touch()
    (base / "models/vae/loose_vae.safetensors").touch()
    (base / "secret.safetensors").touch()


@pytest.fixture(scope="module")
def found(comfy_host, golden, tmp_path_factory) -> Report:
    base = tmp_path_factory.mktemp("base")
    _lay_out(base, golden)
    return run_checks(comfy_host, "model_checks.py", str(base), shared=False)


def test_choices_list_files_folders_and_packages(found):
    choices = found["choices"]
    assert choices["packages"] == ["elsewhere", "toy"]
    assert choices["experts"] == sorted(
        [
            f"{package}/{role}_noise_model_bnb_nf4/model.safetensors"
            for package in ("elsewhere", "toy")
            for role in ("high", "low")
        ]
        + ["flat-00001-of-00002.safetensors", "folder/model.safetensors", "lora.safetensors", "official"]
        + ["single.safetensors", "toy/low_noise_bf16.safetensors", "wan.pt"]
    )
    t5 = "models_t5_umt5-xxl-enc-bf16.pth"
    assert choices["text encoders"] == [f"elsewhere/{t5}", f"toy/{t5}", "loose_t5.safetensors"]
    assert choices["vaes"] == ["elsewhere/Wan2.1_VAE.pth", "toy/Wan2.1_VAE.pth", "loose_vae.safetensors"]
    assert choices["tokenizers"] == ["auto", "elsewhere/tokenizer", "toy/tokenizer"]


def test_names_are_found_where_they_are(found):
    resolved = found["resolving"]
    assert resolved["both slashes"]
    assert Path(resolved["extra path"]) == Path("extra/worlds/elsewhere")
    assert Path(resolved["tokenizer beside"]) == Path("models/lingbot_world/toy/tokenizer")
    assert Path(resolved["tokenizer of a package"]).name == "tokenizer"
    assert Path(resolved["named tokenizer"]) == Path("models/lingbot_world/toy/tokenizer")


def test_names_outside_the_model_folders_are_refused(found):
    assert found["untrusted_names"] == []


def test_fingerprint_follows_the_file(found):
    assert found["fingerprints"] == {"steady": True, "changes": True}


def test_experts_load_from_package_files_and_both(found):
    loaded = found["loading"]
    assert [loaded[name] for name in ("package", "files", "mixed")] == [0, 0, 0]
    assert loaded["dtype"] == ["torch.float32", "torch.bfloat16", "torch.float32"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nothing chosen", "models/lingbot_world"),
        ("outside", "not a name inside"),
        ("gone", "gone.safetensors"),
        ("package gone", "'gone' was not found"),
        ("swapped", "swapped"),
        ("one twice", "same weights"),
        ("gguf", "GGUF"),
        ("lora", "a LoRA"),
    ],
)
def test_wrong_experts_are_refused_in_words(found, case, words):
    assert words in (found["bad_experts"][case] or "accepted")


def test_sigmas_node(found):
    assert found["schedules"] == {"whole": True, "half": True}


def test_sampler_node_is_the_engine_with_seeds(found):
    run = found["sampler_node"]
    assert run["keys"] == ["samples"]
    assert run["same seed"]
    assert run["other seed"] > 0.1
    assert run["engine"] < 1e-4


@pytest.mark.parametrize("patch", ["double_block", "attn1_patch", "attn2_patch"])
def test_patches_of_other_packs_are_called_in_every_block(found, patch):
    result = found["block_hooks"][patch]
    assert result["gap"] < 1e-6
    assert result["blocks"][:1] == [0]
    assert set(result["blocks"]) == {0, 1, 2}
    assert result.get("effect", 1) > 1e-3


def test_blocks_can_be_replaced(found):
    result = found["block_hooks"]["replace"]
    assert result["gap"] < 1e-6
    assert result["given"] == [["img", "pe", "transformer_options", "txt", "vec"]]
    assert result["effect"] > 1e-3


def test_rope_is_scaled_as_core_scales_it(found):
    assert found["rope_as_core"] < 1e-5


def test_attention_override_is_asked(found):
    result = found["attention_override"]
    assert result["calls"] == 6  # self and cross in each of three blocks
    assert result["gap"] < 1e-5


def test_hooks_on_layers_take_part(found):
    result = found["hooks_on_layers"]
    assert min(result["hooked"], result["replaced"]) > 1e-3
    assert result["after"] == 0


def test_memory_is_told_beforehand(found):
    assert 0 < found["memory"]["small"] < found["memory"]["large"]
