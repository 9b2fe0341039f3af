"""Finding the parts of a package, and telling a pair of experts from a mix-up."""

import shutil

import pytest
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders import find_package, package, release
from lingbot_world.options import PerExpert
from safetensors.torch import load_file, save_file


def touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.fixture
def community(tmp_path):
    for role in ("high", "low"):
        touch(tmp_path / f"{role}_noise_model_bnb_nf4/model.safetensors")
    touch(tmp_path / "models_t5_umt5-xxl-enc-bf16.pth")
    touch(tmp_path / "Wan2.1_VAE.pth")
    touch(tmp_path / "tokenizer/tokenizer.json")
    return tmp_path


def test_finds_the_community_package(community):
    found = find_package(community)
    assert found.experts.high == community / "high_noise_model_bnb_nf4"
    assert found.experts.low == community / "low_noise_model_bnb_nf4"
    assert found.text_encoder == community / "models_t5_umt5-xxl-enc-bf16.pth"
    assert found.tokenizer == community / "tokenizer"
    assert found.vae == community / "Wan2.1_VAE.pth"


def test_finds_the_official_package(tmp_path):
    for role in ("high", "low"):
        touch(tmp_path / f"{role}_noise_model/diffusion_pytorch_model.safetensors.index.json")
    touch(tmp_path / "google/umt5-xxl/tokenizer.json")
    found = find_package(tmp_path)
    assert (found.experts.high.name, found.experts.low.name) == ("high_noise_model", "low_noise_model")
    assert found.tokenizer == tmp_path / "google/umt5-xxl"
    assert (found.text_encoder, found.vae) == (None, None)


def test_finds_two_experts_in_diffusers_layout(tmp_path):
    for folder in ("transformer", "transformer_2", "vae"):
        touch(tmp_path / folder / "diffusion_pytorch_model.safetensors")
    (tmp_path / "vae/config.json").write_text('{"_class_name": "AutoencoderKLWan"}')
    found = find_package(tmp_path)
    assert (found.experts.high.name, found.experts.low.name) == ("transformer", "transformer_2")
    assert (found.causal, found.vae) == (None, tmp_path / "vae")


def test_parts_of_other_models_in_diffusers_layout_are_passed_over(tmp_path):
    model = touch(tmp_path / "lingbot-world-fast/model.safetensors").parent
    (model / "config.json").write_text('{"_class_name": "WanModelFast"}')
    for folder, config in {
        "flux/text_encoder": '{"architectures": ["CLIPTextModel"]}',
        "flux/vae": '{"_class_name": "AutoencoderKL"}',
        "a/vae": "{",
        "TI2V-5B/vae": '{"_class_name": "AutoencoderKLWan", "z_dim": 48}',
    }.items():
        touch(tmp_path / folder / "model.safetensors").with_name("config.json").write_text(config)
    assert (find_package(model).text_encoder, find_package(model).vae) == (None, None)
    touch(tmp_path / "wan/text_encoder/model.safetensors")
    (tmp_path / "wan/text_encoder/config.json").write_text('{"architectures": ["UMT5EncoderModel"]}')
    assert find_package(model).text_encoder == tmp_path / "wan/text_encoder"


def test_finds_experts_that_are_files_and_prefers_nf4(community):
    touch(community / "a_high_noise_bf16.safetensors")
    assert find_package(community).experts.high.name == "high_noise_model_bnb_nf4"
    shutil.rmtree(community / "high_noise_model_bnb_nf4")
    assert find_package(community).experts.high.name == "a_high_noise_bf16.safetensors"


def test_a_causal_model_takes_parts_from_a_package_beside_it(tmp_path):
    model = touch(tmp_path / "lingbot-world-fast/model.safetensors").parent
    (model / "config.json").write_text('{"_class_name": "WanModelFast"}')
    base = tmp_path / "lingbot-world-base-cam"
    parts = {
        "text_encoder": touch(base / "models_t5_umt5-xxl-enc-bf16.pth"),
        "vae": touch(base / "Wan2.1_VAE.pth"),
        "tokenizer": touch(base / "google/umt5-xxl/tokenizer.json").parent,
    }
    touch(tmp_path / "Wan2.2-TI2V-5B/Wan2.2_VAE.pth")
    touch(tmp_path / "a/Wan2.1_VAE.pth")
    found = find_package(model)
    assert (found.causal, found.experts) == (model, None)
    assert {part: getattr(found, part) for part in parts} == parts
    shutil.rmtree(base)
    assert find_package(model).vae == tmp_path / "a/Wan2.1_VAE.pth"
    shutil.rmtree(tmp_path / "a")
    assert find_package(model).vae is None


def test_a_causal_model_in_the_current_folder_takes_parts_from_beside_it(tmp_path, monkeypatch):
    model = touch(tmp_path / "fast/model.safetensors").parent
    (model / "config.json").write_text('{"_class_name": "WanModelFast"}')
    touch(tmp_path / "Wan2.1_VAE.pth")
    monkeypatch.chdir(model)
    assert find_package(".").vae == tmp_path / "Wan2.1_VAE.pth"


def test_every_part_can_be_given(community, tmp_path):
    other = touch(tmp_path / "other.safetensors")
    parts = ("high", "low", "text_encoder", "tokenizer", "vae")
    for part in parts:
        found = find_package(community, **{part: str(other)})
        assert getattr(found.experts if part in ("high", "low") else found, part) == other
    assert find_package(None, **dict.fromkeys(parts, other)).vae == other


def test_what_is_missing_and_what_was_found_are_named(community):
    shutil.rmtree(community / "low_noise_model_bnb_nf4")
    with pytest.raises(CheckpointError) as caught:
        find_package(community)
    message = str(caught.value)
    assert "missing the low-noise expert (low_noise_model*)" in message
    assert "high: high_noise_model_bnb_nf4" in message


def test_a_causal_gguf_file_is_found_by_its_name(tmp_path):
    file = touch(tmp_path / "lingbot-world-fast-Q4_K_M.gguf")
    assert find_package(file).causal == file
    assert find_package(tmp_path, release="v1").causal == tmp_path


def test_a_folder_without_weights_is_no_expert(community):
    (community / "high_noise_model_bnb_nf4/model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="missing the high-noise expert"):
        find_package(community)


def test_the_folder_of_one_expert_is_recognised(community, golden):
    assert package.is_model_folder(community / "high_noise_model_bnb_nf4")
    assert not package.is_model_folder(community)
    with pytest.raises(CheckpointError, match="of one LingBot-World expert; give the folder above it, or, .*`release`"):
        find_package(golden / "nf4/high_noise_model_bnb_nf4")


@pytest.mark.parametrize("arguments", [("nowhere", {}), (".", {"vae": "nowhere"})])
def test_paths_that_do_not_exist_are_named(tmp_path, arguments):
    folder, overrides = arguments
    with pytest.raises(CheckpointError, match="nowhere: no such"):
        find_package(tmp_path / folder, **overrides)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("high_noise_model_bnb_nf4", "high"),
        ("wan-LOW-noise.safetensors", "low"),
        ("highway.safetensors", None),
        ("high_to_low.safetensors", None),
        ("low/model.safetensors", "low"),
    ],
)
def test_roles_are_read_from_names(tmp_path, name, role):
    (tmp_path / "high").mkdir()  # next to which a bare "low" says something
    assert release.named_role(tmp_path / name) == role


@pytest.fixture
def pair(golden):
    return PerExpert(*(golden / f"nf4/{role}_noise_model_bnb_nf4" for role in ("high", "low")))


def test_a_pair_is_accepted(pair):
    assert package.open_experts(pair).low.path == pair.low


def test_swapped_experts_are_refused(pair):
    with pytest.raises(CheckpointError, match="swapped"):
        package.open_experts(PerExpert(pair.low, pair.high))


def test_the_same_expert_twice_is_refused(pair, golden, tmp_path):
    with pytest.raises(CheckpointError, match="same weights"):
        package.open_experts(PerExpert(pair.high, pair.high))
    shutil.copytree(golden / "nf4/high_noise_model_bnb_nf4", tmp_path / "copy")
    with pytest.raises(CheckpointError, match="same weights"):
        package.open_experts(PerExpert(pair.high, tmp_path / "copy"))


def test_experts_of_different_architectures_are_refused(pair, golden, tmp_path):
    tensors = load_file(golden / "model/low_noise_model_fp32.safetensors")
    fewer = {key: value for key, value in tensors.items() if not key.startswith("blocks.2.")}
    shutil.copy(golden / "nf4/low_noise_model_bnb_nf4/config.json", tmp_path)
    (tmp_path / "config.json").write_text('{"num_heads": 2, "text_len": 32}')
    save_file(fewer, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="different architectures"):
        package.open_experts(PerExpert(pair.high, tmp_path))
