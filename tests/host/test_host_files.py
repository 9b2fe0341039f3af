"""Files as other programs write them, on a real ComfyUI: diffusers' layout, fp8 and int8 with ComfyUI's metadata."""

import shutil

import pytest
from diffusers_cases import write_diffusers, write_official
from host_runner import Report, run_checks
from quantize_cases import run

pytestmark = pytest.mark.host
DIFFUSERS = "lingbot-world-fast-diffusers"


@pytest.fixture(scope="module")
def found(comfy_host, toy_package, tmp_path_factory) -> Report:
    base = tmp_path_factory.mktemp("files")
    packages = base / "models/lingbot_world"
    official = write_official(packages / "official/lingbot_world_fast", toy_package)
    for part in (official.text_encoder, official.vae):
        shutil.copy(part, packages / "official")
    shutil.copytree(official.tokenizer, packages / "official/tokenizer")
    write_diffusers(packages / DIFFUSERS, official)
    run(official.causal, base / "fp8", format="comfy-fp8")
    return run_checks(comfy_host, "files_checks.py", str(base), shared=False)


def test_a_package_in_diffusers_layout_is_offered_part_by_part(found):
    choices = found["choices"]
    official = "official/lingbot_world_fast/model.safetensors"
    assert choices["causal"] == [f"{DIFFUSERS}/transformer/*.safetensors", official]
    assert choices["experts"] == [f"{DIFFUSERS}/transformer", official]
    assert choices["vaes"] == ["official/Wan2.1_VAE.pth", f"{DIFFUSERS}/vae"]
    assert f"{DIFFUSERS}/text_encoder" in choices["text encoders"]
    assert choices["tokenizers"] == ["auto", f"{DIFFUSERS}/tokenizer", "official/tokenizer"]
    assert {f"{DIFFUSERS}/transformer", f"{DIFFUSERS}/text_encoder"} <= set(choices["sources"])


def test_its_parts_are_the_official_ones_to_the_bit(found):
    assert found["diffusers_model"]
    assert found["diffusers_vae"]


def test_its_text_encoder_gives_the_official_embeddings_to_the_bit(found):
    assert found["diffusers_text_encoder"] == [True, True]


def test_core_reads_the_fp8_files_that_quantize_writes(found):
    read = found["fp8_written_for_core"]
    assert read["layouts"] == {"TensorCoreFP8E4M3Layout": read["layers"]}
    assert read["layers"] == 51
    assert read["other weights"] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float8_e4m3fn", "fp8"),
        ("float8_e5m2", "fp8_e5m2"),
        ("int8_tensorwise", "int8"),
    ],
)
def test_files_that_core_writes_are_decoded_to_its_bits(found, name, kind):
    engine, host, quantization, fp8, int8 = found["written_by_core"][name]
    assert (engine, host, quantization) == ([], [], kind)
    assert (fp8, int8) == (0, 0)
