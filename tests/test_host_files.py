"""Files as other programs write them, on a real ComfyUI: diffusers' layout."""

import shutil

import pytest
from diffusers_cases import write_diffusers, write_official
from host_runner import Report, run_checks

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
    return run_checks(comfy_host, "files_checks.py", str(base), shared=False)


def test_a_package_in_diffusers_layout_is_offered_part_by_part(found):
    choices = found["choices"]
    assert choices["causal"] == [f"{DIFFUSERS}/transformer", "official/lingbot_world_fast"]
    assert choices["experts"] == [f"{DIFFUSERS}/transformer", "official/lingbot_world_fast/model.safetensors"]
    assert choices["vaes"] == ["official/Wan2.1_VAE.pth", f"{DIFFUSERS}/vae"]
    assert f"{DIFFUSERS}/text_encoder" in choices["text encoders"]
    assert choices["tokenizers"] == ["auto", f"{DIFFUSERS}/tokenizer", "official/tokenizer"]
    assert {f"{DIFFUSERS}/transformer", f"{DIFFUSERS}/text_encoder"} <= set(choices["sources"])


def test_its_parts_are_the_official_ones_to_the_bit(found):
    assert found["diffusers_model"]
    assert found["diffusers_vae"]


def test_its_text_encoder_gives_the_official_embeddings_to_the_bit(found):
    assert found["diffusers_text_encoder"] == [True, True]
