"""The expert, and the release, that files and folders are for by their names."""

from pathlib import Path

import pytest
from lingbot_world.loaders import find_package
from lingbot_world.loaders.release import named_causal, named_release, names_of, noise_role, role_of
from lingbot_world.options import PerExpert

REVISION = "7e36a5f9c0ffee00112233445566778899aabbcc"


@pytest.mark.parametrize(
    "name",
    [
        "{high}_noise_model_bnb_nf4",
        "LingBot-{High}Noise.safetensors",
        "night_LingBot-{High}Noise.safetensors",
        "LingBot{High}Noise.safetensors",
        "Wan2_2-I2V-A14B-{HIGH}-noise_fp8.safetensors",
        "wan2.2 i2v {high} noise 14B.safetensors",
        "wan22_{high}noise_lora.safetensors",
        "{HIGH}NOISE.safetensors",
        "A14B{High}Noise-4steps.safetensors",
        "style.{high}.noise.safetensors",
        "noise_{high}.safetensors",
    ],
)
def test_names_with_noise(name):
    for role in ("high", "low"):
        spelled = name.format(high=role, High=role.title(), HIGH=role.upper())
        assert noise_role(spelled) == role
        assert role_of(Path("/nowhere") / spelled) == role


def test_hinoise_and_lonoise():
    assert noise_role("wan_hinoise.safetensors") == noise_role("Wan-HiNoise.safetensors") == "high"
    assert noise_role("wan_lonoise.safetensors") == noise_role("Wan-LoNoise.safetensors") == "low"


@pytest.mark.parametrize(
    "name",
    ["slownoise.safetensors", "low_poly.safetensors", "highlight_noise.safetensors", "yellow_noise", "denoise_highres"]
    + ["high_noise_and_low_noise.safetensors", "followNoise.safetensors", "model.safetensors", "shigh.safetensors"],
)
def test_other_names_say_nothing(tmp_path, name):
    assert noise_role(name) is None
    (tmp_path / name).touch()
    assert role_of(tmp_path / name) is None


@pytest.mark.parametrize("pair", [("style_high", "style_low"), ("Style-High", "Style-Low"), ("HIGH_v2", "LOW_v2")])
def test_a_bare_word_counts_next_to_its_twin(tmp_path, pair):
    files = [tmp_path / f"{name}.safetensors" for name in pair]
    files[0].touch()
    assert role_of(files[0]) is None
    assert [role_of(file, files) for file in files] == ["high", "low"]
    files[1].touch()
    assert [role_of(file) for file in files] == ["high", "low"]


def test_a_repository_in_the_hubs_cache():
    cache = Path("/cache/models--robbyant--lingbot-world-v2-14b-causal-fast/snapshots") / REVISION
    for path in (cache, cache / "transformers", cache / "transformers" / "model.safetensors"):
        names = names_of(path)
        assert named_release(names) == "v2"
        assert named_causal(names)
    other = Path("/cache/models--robbyant--lingbot-world-base-cam/snapshots") / REVISION / "high_noise_model"
    assert not named_causal(names_of(other))
    assert named_release(names_of(other)) is None


def test_a_package_whose_experts_have_bare_words(tmp_path, toy_package):
    for part in toy_package.iterdir():
        word = next((word for word in ("high", "low") if part.name.startswith(f"{word}_noise")), part.name)
        (tmp_path / word).symlink_to(part)
    assert find_package(tmp_path).experts == PerExpert(tmp_path / "high", tmp_path / "low")
