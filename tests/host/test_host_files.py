"""Files as other programs write them, on a real ComfyUI: diffusers' layout, fp8 and int8 with ComfyUI's metadata."""

import shutil
from pathlib import Path

import pytest
from diffusers_cases import write_diffusers, write_official
from host_runner import Report, run_checks
from lingbot_world.weights.files import read_tensors
from quantize_cases import run

pytestmark = pytest.mark.host
DIFFUSERS = "lingbot-world-fast-diffusers"
GGUF = "lingbot-world-fast-gguf/lingbot-world-fast-Q4_K.gguf"


@pytest.fixture(scope="module")
def found(comfy_host, toy_package, tmp_path_factory) -> Report:
    base = tmp_path_factory.mktemp("files")
    packages = base / "models/lingbot_world"
    official = write_official(packages / "official/lingbot_world_fast", toy_package)
    for part in (official.text_encoder, official.vae):
        shutil.copy(part, packages / "official")
    shutil.copytree(official.tokenizer, packages / "official/tokenizer")
    write_diffusers(packages / DIFFUSERS, official)
    for name in ("comfy-fp8", "int8", "nvfp4"):
        run(official.causal, base / name, format=name)
    write_gguf(base / "models", official)
    return run_checks(comfy_host, "files_checks.py", str(base), shared=False)


def test_a_package_in_diffusers_layout_is_offered_part_by_part(found):
    choices = found["choices"]
    official = "official/lingbot_world_fast/model.safetensors"
    assert choices["causal"] == [f"{DIFFUSERS}/transformer/*.safetensors", GGUF, official]
    assert choices["experts"] == [f"{DIFFUSERS}/transformer", GGUF, official]
    assert choices["vaes"] == ["official/Wan2.1_VAE.pth", f"{DIFFUSERS}/vae"]
    assert f"{DIFFUSERS}/text_encoder" in choices["text encoders"]
    assert choices["tokenizers"] == ["auto", f"{DIFFUSERS}/tokenizer", "official/tokenizer"]
    assert {f"{DIFFUSERS}/transformer", f"{DIFFUSERS}/text_encoder"} <= set(choices["sources"])


def test_its_parts_are_the_official_ones_to_the_bit(found):
    assert found["diffusers_model"]
    assert found["diffusers_vae"]


def test_a_weight_that_is_not_finite_is_named_by_the_first_forward(found):
    first, second = found["a_weight_that_is_not_finite"]
    assert "NaN or infinity in 1 tensors (blocks.0.norm3.bias)" in first
    assert second == ""


def test_its_text_encoder_gives_the_official_embeddings_to_the_bit(found):
    assert found["diffusers_text_encoder"] == [True, True]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("comfy-fp8", "TensorCoreFP8E4M3Layout"),
        ("int8", "TensorWiseINT8Layout"),
        ("nvfp4", "TensorCoreNVFP4Layout"),
    ],
)
def test_core_reads_the_files_that_quantize_writes(found, name, layout):
    assert found["written_for_core"][name] == {"layouts": {layout: 51}, "other weights": []}


def write_gguf(models: Path, official) -> None:
    """A causal model and a text encoder in blocks, where ComfyUI's users keep them."""
    pytest.importorskip("gguf", reason="GGUF SKIPPED: not installed; pip install gguf")
    from gguf_cases import llama_names, write

    folder = models / "diffusion_models/lingbot-world-fast-gguf"
    folder.mkdir(parents=True)
    shutil.copy(official.causal / "config.json", folder)
    tensors = {name: entry.view() for name, entry in read_tensors(official.causal).items()}
    write(folder / "lingbot-world-fast-Q4_K.gguf", tensors, "Q4_K")
    (models / "text_encoders").mkdir(exist_ok=True)
    tensors = {name: entry.view() for name, entry in read_tensors(official.text_encoder).items()}
    write(models / "text_encoders/umt5-Q8_0.gguf", llama_names(tensors), "Q8_0", arch="t5encoder")


def test_gguf_files_are_offered_loaded_and_changed_by_loras(found, comfy_host):
    read, names = found["gguf_files"], [GGUF, "umt5-Q8_0.gguf"]
    if read is None:
        pytest.skip(f"GGUF SKIPPED: ComfyUI's Python lacks it: {comfy_host.python} -m pip install gguf")
    assert (read["names"], read["sources"]) == (names, names)
    assert (read["others"], read["in_blocks"], read["text"]) == ([], 51, True)
    assert read["lora"] < 0.02


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float8_e4m3fn", "fp8"),
        ("float8_e5m2", "fp8_e5m2"),
        ("int8_tensorwise", "int8"),
        ("int8_convrot", "int8_convrot"),
        ("nvfp4", "nvfp4"),
        ("mxfp8", "mxfp8"),
    ],
)
def test_files_that_core_writes_are_decoded_to_its_bits(found, name, kind):
    engine, host, quantization, fp8, int8 = found["written_by_core"][name]
    assert (engine, host, quantization) == ([], [], kind)
    assert (fp8, int8) == (0, 0)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8"])
def test_a_card_multiplies_them_in_their_own_format(found, name):
    """With 8bit, where its trial is right; the same in ComfyUI as in the engine."""
    from_engine, from_8_bits = found["in_their_own_format"][name]
    assert from_engine == 0
    assert from_8_bits > 1e-3


def test_a_weight_outlives_its_transfer_buffer(found):
    assert set(found["through_transfer_buffers"].values()) == {0}
