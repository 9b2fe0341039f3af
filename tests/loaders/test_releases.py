"""Which release a model is: told from its config.json, its shapes and its folders' names, or by an option."""

import json
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from lingbot_world.errors import CheckpointError, InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.headless.options import GenerateOptions
from lingbot_world.headless.plan import make_plan
from lingbot_world.loaders import find_package, open_checkpoint
from lingbot_world.loaders.package import is_causal_folder, open_experts
from lingbot_world.options import RELEASES, Window
from lingbot_world.toy.tokenizer import write_tokenizer
from lingbot_world.toy.weights import EXPERT, text_config
from quantize_cases import run
from release_cases import SMALL_RELEASE, write_shards, write_toy_shards
from rollout_run_cases import words_of
from safetensors.torch import load_file, save_file

FAST, V2, SMALL, PRETRAIN = (release.name for release in RELEASES.values())
INDEXES = ["model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json"]


@pytest.fixture
def place(toy_package, tmp_path):
    """Puts the toy's causal model into a folder of that name, with this class in its config.json; None: without."""

    def put(name, class_name="WanModelFast"):
        folder = tmp_path / "disk" / name
        shutil.copytree(toy_package / "lingbot_world_fast", folder)
        config = json.loads((folder / "config.json").read_text()) | {"_class_name": class_name}
        (folder / "config.json").write_text(json.dumps(config))
        if class_name is None:
            (folder / "config.json").unlink()
        return folder

    return put


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("lw_v2/models/lingbot-world-fast-nf4", FAST),
        ("lingbot-world-base-cam/lingbot_world_fast", FAST),
        ("toy/rooms", FAST),
        ("lingbot-world-v2-14b-causal-fast", V2),
        ("lingbot-world-v2-14b/model", V2),
        ("lingbot-world-v2-1.3b-causal-fast", SMALL),
        ("LW_1P3B_nf4/model", SMALL),
    ],
)
def test_the_nearest_name_tells_the_release_and_so_does_a_link(place, tmp_path, name, release):
    folder = place(name)
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    for opened in (folder, tmp_path / "link"):
        assert open_checkpoint(opened).release.name == release
    told = name != "toy/rooms"
    assert len(open_checkpoint(folder).release_lines) == (1 if told else 2)


def test_a_quantized_model_is_what_it_was_made_from(place, tmp_path):
    source = place("lingbot-world-v2-14b-causal-fast")
    (source / "quantization_meta.json").write_text('{"source": "lingbot-world-v2-1.3b-causal-fast"}')
    assert open_checkpoint(source).release.name == SMALL


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("lingbot-world-v2-1.3b-causal-fast", SMALL),
        ("lingbot-world-v2-14b-causal-fast/transformers", V2),
        ("v2/causal-pretrain", PRETRAIN),
        ("v2/transformer_causal", PRETRAIN),
        ("lingbot_world_fast", FAST),
        ("models--robbyant--lingbot-world-v2-1.3b-causal-fast/snapshots/7e36a5f9", SMALL),
        ("causal-fast/high_noise_model", None),
        ("rooms", None),
        ("fast", None),
    ],
)
def test_without_a_config_the_name_tells_that_a_model_is_causal(place, name, release):
    folder = place(name, None)
    found = open_checkpoint(folder)
    assert (found.release and found.release.name) == release
    assert found.config.causal == is_causal_folder(folder) == (release is not None)


@pytest.mark.parametrize(("class_name", "release"), [("WanModelCausal", PRETRAIN), ("WanModel", None)])
def test_the_class_in_a_config_counts_more_than_a_name(place, class_name, release):
    found = open_checkpoint(place("lingbot-world-v2-14b-causal-fast", class_name))
    assert (found.release and found.release.name) == release
    assert found.config.causal == (release is not None)


@pytest.mark.parametrize("index", INDEXES)
def test_the_1_3b_is_told_by_its_shapes(tmp_path, index):
    folder = write_shards(tmp_path / "download", SMALL_RELEASE, index=index)
    found = open_checkpoint(folder)
    assert (found.release.name, len(found.shapes), found.parameters) == (SMALL, 1071, 1_709_502_016)
    assert (found.release.shift, found.release.chunk, found.release.window) == (5.0, 4, Window(18, 6))
    assert found.config == replace(SMALL_RELEASE, causal=True)
    assert found.release_lines == (f"{SMALL} (CC BY-NC-SA 4.0, for non-commercial use): download",)
    assert find_package(folder).causal == folder


@pytest.mark.parametrize(
    ("config", "name", "causal"),
    [
        (replace(SMALL_RELEASE, control=None), "download", False),
        (replace(SMALL_RELEASE, num_layers=2), "download", False),
        (SMALL_RELEASE, "lingbot-world-v2-14b-causal-fast", True),
    ],
)
def test_only_30_layers_of_1536_with_camera_layers_are_the_1_3b(tmp_path, config, name, causal):
    folder = write_shards(tmp_path / name, config)
    assert is_causal_folder(folder) == causal
    release = open_checkpoint(folder).release
    assert (release and release.name) == (SMALL if causal else None)


def test_an_option_says_what_the_files_do_not(place, capsys):
    folder = place("rooms", None)
    assert main(["inspect", str(folder), "--size", "48*64"]) == 0
    assert (
        "or a causal model: the files do not show it, so --release v1, v2, v2-1.3b, v2-pre" in capsys.readouterr().out
    )
    assert main(["inspect", str(folder), "--size", "48*64", "--release", "v2"]) == 0
    assert f"{V2} (CC BY-NC-SA 4.0" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match="if it is a causal model, `release` v1, v2, v2-1.3b, v2-pretrain"):
        find_package(folder)
    assert find_package(folder, release="v2").causal == folder
    found = open_checkpoint(folder).with_release("v2")
    assert found.config.causal
    assert (found.release.name, len(found.release_lines)) == (V2, 1)
    (folder.parent / "high_noise_model").symlink_to(folder)
    line = open_checkpoint(folder.parent / "high_noise_model").with_release("v2").release_lines[-1]
    assert line == "high_noise_model is the name of a base model's expert; `release` makes it run as a causal model."
    with pytest.raises(InputError, match="`release` v3: expected one of v1, v2, v2-1.3b, v2-pretrain"):
        find_package(folder, release="v3")


def test_a_name_and_shapes_that_contradict_each_other_are_refused(tmp_path):
    config = replace(EXPERT, dim=2048, num_heads=16, num_layers=1)
    folder = write_shards(tmp_path / "lingbot-world-v2-1.3b-causal-fast", config, 1)
    with pytest.raises(CheckpointError, match="1.3B by its name, but it has 1 layers of width 2048, expected 30 of"):
        open_checkpoint(folder)


def test_a_plain_wan_model_is_refused_where_a_causal_one_is_meant(tmp_path):
    folder = write_shards(tmp_path / "wan-causal-fast", replace(EXPERT, dim=256, control=None), 1)
    with pytest.raises(CheckpointError, match="without camera layers, so a plain Wan model"):
        open_checkpoint(folder)


def test_matrix_game_is_refused_with_its_name(tmp_path):
    folder = write_shards(tmp_path / "download", replace(EXPERT, dim=256, in_dim=48), 1)
    with pytest.raises(CheckpointError, match=r"Matrix-Game 3.0 by its shapes"):
        find_package(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = write_shards(tmp_path / "lingbot-world-v2-1.3b-causal-fast", SMALL_RELEASE)
    (folder / "model-00004-of-00006.safetensors").unlink()
    assert find_package(folder).causal == folder
    with pytest.raises(CheckpointError, match="1 of its 6 shards missing in .*: model-00004-of-00006.safetensors"):
        open_checkpoint(folder)


def test_parts_are_taken_from_the_folder_that_is_named_for_them(place, toy_package, tmp_path):
    folder = place("lingbot-world-v2-1.3b-causal-fast")
    package = find_package(folder, assets=toy_package)
    assert {path.parent for path in (package.text_encoder, package.tokenizer, package.vae)} == {toy_package}
    (folder / "Wan2.1_VAE.pth").touch()
    assert find_package(folder, assets=toy_package).vae == toy_package / "Wan2.1_VAE.pth"
    other = toy_package / "models_t5_umt5-xxl-enc-bf16.pth"
    assert find_package(folder, assets=toy_package, vae=other).vae == other
    for named, message in ((tmp_path / "disk", "neither text encoder, tokenizer nor VAE"), (other, "no such folder")):
        with pytest.raises(CheckpointError, match=f"{named}: {message}.*`assets_dir`"):
            find_package(folder, assets=named)


def test_one_file_is_a_model_as_well(toy_package, tmp_path):
    file = tmp_path / "models/small/lingbot-world-v2-1.3b-fast.safetensors"
    file.parent.mkdir(parents=True)
    shutil.copy(toy_package / "lingbot_world_fast/model.safetensors", file)
    package = find_package(file, assets=toy_package)
    assert (package.causal, package.vae.parent) == (file, toy_package)
    assert open_checkpoint(file).release.name == SMALL
    beside = tmp_path / "models/lingbot-world-v2-14b"
    shutil.copytree(toy_package, beside, ignore=shutil.ignore_patterns("*noise*", "lingbot_world_fast"))
    assert find_package(file).vae.parent == beside
    unnamed = file.rename(file.with_name("rooms.safetensors"))
    with pytest.raises(CheckpointError, match="a file of one LingBot-World expert; give the package's folder, or,"):
        find_package(unnamed)
    assert find_package(unnamed, release="v2").causal == unnamed
    with pytest.raises(CheckpointError, match="VAE"):
        find_package(toy_package / "Wan2.1_VAE.pth")


def test_parts_are_found_in_the_14b_beside_it(place, toy_package):
    folder = place("lingbot-world-v2-1.3b-causal-fast", None)
    beside = folder.parent / "lingbot-world-v2-14b-causal-fast"
    shutil.copytree(toy_package, beside, ignore=shutil.ignore_patterns("*noise*", "lingbot_world_fast"))
    package = find_package(folder)
    assert {path.parent for path in (package.text_encoder, package.tokenizer, package.vae)} == {beside}


def test_quantizing_keeps_the_release(tmp_path):
    for name, release in (("lingbot-world-v2-1.3b-causal-fast", SMALL), ("causal-pretrain", PRETRAIN)):
        folder = write_shards(tmp_path / name, EXPERT, 2)
        run(folder, tmp_path / f"{release}.nf4")
        made = open_checkpoint(tmp_path / f"{release}.nf4")
        assert (made.quantization, made.release.name) == ("nf4", release)


@pytest.fixture
def downloaded(tmp_path):
    return write_toy_shards(tmp_path / "disk/lingbot-world-v2-1.3b-causal-fast")


@pytest.fixture
def options(downloaded, toy_package, tmp_path):
    image = toy_package / "example/image.png"
    return partial(
        GenerateOptions,
        ckpt_dir=downloaded,
        assets_dir=toy_package,
        image=image,
        prompt="a castle",
        width=64,
        height=48,
        frame_num=13,
        device="cpu",
        output=tmp_path / "x.mp4",
    )


def test_the_1_3b_as_it_is_downloaded_makes_a_video(options, toy_package, tmp_path, capsys):
    size = {"width": 64, "height": 48, "frame_num": 13, "action_path": toy_package / "example"}
    words = words_of(options(), assets_dir=toy_package, dtype="bf16", output=tmp_path / "x.mp4", **size)
    code = main(words)
    said, wrong = capsys.readouterr()
    assert code == 0, wrong
    assert f"{SMALL} (CC BY-NC-SA 4.0, for non-commercial use): lingbot-world-v2-1.3b-causal-fast" in said
    assert (tmp_path / "x.mp4").stat().st_size


def test_the_1_3b_brings_its_steps_window_and_shift(options):
    plan = make_plan(options(dtype="bf16"))
    assert (plan.spec.schedule.timesteps, plan.spec.window) == ((999, 937, 833, 624), Window(18, 6))
    assert (plan.spec.chunk, plan.geometry.frames) == (4, 13)
    assert not any("shift" in note for note in plan.notes)
    assert {entry.dtype for entry in plan.checkpoint.tensors.values()} == {torch.bfloat16}
    plan = make_plan(options(shift=10.0))
    assert plan.spec.schedule.timesteps[1] == 967
    assert f"The shift is 10; {SMALL} was made for 5." in plan.notes


def test_a_text_encoder_of_another_width_is_refused(options, tmp_path):
    vocab_size = write_tokenizer(tmp_path / "tokenizer")
    wide = replace(text_config(vocab_size), dim=128).parameter_shapes()
    torch.save({name: torch.zeros(shape) for name, shape in wide.items()}, tmp_path / "t5.pth")
    with pytest.raises(InputError, match="`text_encoder` .*t5.pth: its embeddings have 128 values, the model reads 64"):
        make_plan(options(text_encoder=tmp_path / "t5.pth"))


def test_what_is_missing_is_said_with_where_it_is(downloaded, options, capsys):
    with pytest.raises(
        InputError, match="no tokenizer, text_encoder, vae in this package nor next to it; .*`assets_dir` .*robbyant/"
    ):
        make_plan(options(assets_dir=None))
    assert main(["inspect", str(downloaded), "--size", "48*64"]) == 0
    said = capsys.readouterr().out
    for words in (SMALL, "CC BY-NC-SA", "vae: missing", "robbyant/lingbot-world-v2-14b-causal-fast", "--assets_dir"):
        assert words in said


def test_inspect_finds_the_other_parts_in_the_folder_that_is_named(downloaded, toy_package, capsys):
    assert main(["inspect", str(downloaded), "--size", "48*64", "--assets_dir", str(toy_package)]) == 0
    said = capsys.readouterr().out
    assert "missing" not in said
    assert str(toy_package / "Wan2.1_VAE.pth") in said


def test_the_bidirectional_model_runs_as_base_and_says_so(toy_package, options, tmp_path, capsys):
    folder = tmp_path / "lingbot-world-v2-14b-bid"
    shutil.copytree(toy_package, folder)
    notes = make_plan(options(ckpt_dir=folder, assets_dir=None)).notes
    assert notes[0].startswith("LingBot-World 2.0 bidirectional: its files are those of the base model, so it runs as")
    assert not any("bidirectional" in note for note in make_plan(options(ckpt_dir=toy_package)).notes)
    assert main(["inspect", str(folder), "--size", "48*64"]) == 0
    assert "LingBot-World 2.0 bidirectional (CC BY-NC-SA 4.0" in capsys.readouterr().out


def test_quantize_takes_the_other_parts_from_the_folder_that_is_named(downloaded, toy_package, tmp_path):
    run(downloaded, tmp_path / "nf4", assets=toy_package)
    package = find_package(tmp_path / "nf4")
    assert {path.parent for path in (package.causal / "x", package.text_encoder, package.vae)} == {tmp_path / "nf4"}
    assert open_checkpoint(tmp_path / "nf4").release.name == SMALL


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [
        ("high_noise_model.safetensors", "lingbot_world_fast/model.safetensors", True),
        ("low_noise_model.safetensors", "lw-v2-14b-causal-fast", True),
        ("high_noise_model.safetensors", "low_noise_model.safetensors", False),
        ("lingbot_world_fast/model.safetensors", "lw-v2-14b-causal-fast", False),
    ],
)
def test_a_header_that_names_both_kinds_of_models_is_reported(toy_package, tmp_path, caplog, first, second, warned):
    """As ComfyUI's nodes write it after a merge."""
    shutil.copytree(toy_package, tmp_path / "toy")
    inputs = [{"inputs": {"package": first}}, {"inputs": {"package": second, "high_noise": ["1", 0]}}]
    for folder in ("lingbot_world_fast", "low_noise_model_bnb_nf4"):
        file = tmp_path / "toy" / folder / "model.safetensors"
        save_file(load_file(file), file, {"prompt": json.dumps(inputs)})
    lines = open_checkpoint(tmp_path / "toy/lingbot_world_fast").release_lines
    open_experts(find_package(tmp_path / "toy").experts)
    for found in (lines, [record.message for record in caplog.records]):
        told = [line for line in found if "its header names" in line]
        assert len(told) == warned
        assert not warned or all(name in told[0] for name in (first, second))
