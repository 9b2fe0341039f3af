"""Weight files as strangers have them: other prefixes, a config.json of another model, half a cache, broken scales."""

import json
import math
import shutil

import pytest
import torch
from lingbot_world.errors import CheckpointError, TextError
from lingbot_world.headless.command.cli import main
from lingbot_world.loaders import find_package, open_checkpoint
from lingbot_world.text.encoder import encode_ids
from lingbot_world.text.weights import huggingface_key, open_weights
from lingbot_world.toy.weights import vae_tensors
from lingbot_world.vae import load_vae, read_vae
from lingbot_world.weights.config_json import stated_numbers, wan_fields
from lingbot_world.weights.files import read_tensors, shared_prefix
from model_cases import SMALL, random_state
from safetensors.torch import load_file, save_file

CONFIG = {"num_heads": SMALL.num_heads, "text_len": SMALL.text_len, "eps": 1e-6}


def expert(folder, prefix="", **config):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({prefix + key: value for key, value in random_state(SMALL).items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    return folder


@pytest.fixture(scope="module")
def umt5(golden):
    return load_file(golden / "t5" / "t5_encoder_fp32.safetensors")


@pytest.mark.parametrize(
    "prefix", ["model.diffusion_model.", "model.", "module.", "_orig_mod.", "pipe.dit.", "model.model.", "transformer."]
)
def test_a_prefix_that_all_of_an_experts_tensors_have(tmp_path, prefix):
    assert open_checkpoint(expert(tmp_path, prefix)).shapes.keys() == SMALL.parameter_shapes().keys()


@pytest.mark.parametrize("prefix", ["model.", "vae.", "first_stage_model.", "module."])
def test_a_prefix_that_all_of_a_vaes_tensors_have(tmp_path, prefix):
    tensors = vae_tensors(0)
    save_file({prefix + key: value for key, value in tensors.items()}, tmp_path / "vae.safetensors")
    found = read_vae(tmp_path / "vae.safetensors")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[key], value) for key, value in tensors.items())


@pytest.mark.parametrize("prefix", ["text_encoders.umt5xxl.transformer.", "text_encoder.", "module.", "model."])
@pytest.mark.parametrize("spelling", [str, huggingface_key])
def test_the_prefixes_of_text_encoders(tmp_path, umt5, prefix, spelling):
    save_file({prefix + spelling(key): value for key, value in umt5.items()}, tmp_path / "t5.safetensors")
    weights = open_weights(tmp_path / "t5.safetensors")
    assert (weights.shapes.keys(), weights.unread) == (umt5.keys(), ())


def test_a_prefix_of_some_tensors_is_none():
    assert shared_prefix(["a.x.weight", "b.y.weight"], ("x.weight",)) == ""
    assert shared_prefix(["a.b.x.weight", "a.b.x.bias", "scaled_fp8"], ("x.weight",)) == "a.b."


def test_two_names_of_one_tensor_have_to_agree(tmp_path, umt5):
    tensors = {huggingface_key(key): value for key, value in umt5.items()}
    file, twin = tmp_path / "t5.safetensors", "encoder.embed_tokens.weight"
    save_file(tensors | {twin: tensors["shared.weight"].clone()}, file)
    assert open_weights(file).shapes.keys() == umt5.keys()
    save_file(tensors | {twin: 2 * tensors["shared.weight"]}, file)
    with pytest.raises(CheckpointError, match="a second, differing token_embedding.weight"):
        open_weights(file)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_scale_that_is_no_number(tmp_path, umt5, dtype):
    name = "blocks.0.attn.q"
    eight = {f"{name}.weight": umt5[f"{name}.weight"].to(torch.float8_e4m3fn)}
    scale = {f"{name}.scale_weight": torch.tensor(math.nan, dtype=dtype)}
    save_file(umt5 | eight | scale, tmp_path / "t5.safetensors")
    with pytest.raises(CheckpointError, match=r"NaN or infinity in 1 tensors \(blocks.0.attn.q.weight_scale\)"):
        open_weights(tmp_path / "t5.safetensors")


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_heads", each) for each in (True, "4", 0, 1.5, [4])]
    + [("text_len", each) for each in (-1, 0, 10**9, "512")]
    + [("eps", each) for each in (0, -1e-6, 1, math.nan, math.inf, True, "1e-6")],
)
def test_numbers_that_no_model_has(key, value):
    with pytest.raises(CheckpointError, match=f"config.json has {key} .*expected a"):
        stated_numbers("x", {key: value})
    assert stated_numbers("x", {key: None}) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("patch_size", [1, 4, 4]),
        ("qk_norm", False),
        ("cross_attn_norm", False),
        ("window_size", [21, 21]),
        ("rope_theta", 1e6),
        ("rope_scaling", {"type": "yarn", "factor": 4}),
        ("control_type", "act"),
        ("num_layers", 40),
    ],
)
def test_a_config_json_of_another_model(tmp_path, key, value):
    with pytest.raises(CheckpointError, match=f"config.json belongs to another model: {key}"):
        open_checkpoint(expert(tmp_path, **{key: value}))


def test_a_config_json_that_says_what_the_model_is(tmp_path):
    own = {"patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads", "cross_attn_norm": True, "control_type": "cam"}
    assert open_checkpoint(expert(tmp_path, **own, window_size=[-1, -1], rope_theta=10000.0, num_layers=None))


@pytest.mark.parametrize(
    "other",
    [{"_class_name": "FluxTransformer2DModel", "num_attention_heads": 24}, {"architectures": ["UMT5EncoderModel"]}],
)
def test_a_config_json_of_another_kind_of_model_does_not_count(other):
    assert wan_fields(other) == {}
    for name in (None, "WanModelFast", "WanTransformer3DModel", "CausalLingBotWorldTransformer3DModel"):
        assert wan_fields({"_class_name": name, "num_heads": 4})["num_heads"] == 4


def hub(folder, revisions=("abc",), main="abc"):
    repository = folder / "models--robbyant--lingbot-world-fast"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(main)
    for revision in revisions:
        snapshot = expert(repository / "snapshots" / revision)
        (snapshot / "model.safetensors").replace(repository / f"blobs/{revision}")
        (snapshot / "model.safetensors").symlink_to(f"../../blobs/{revision}")
    return repository


def test_a_repositorys_folder_in_the_cache_stands_for_its_snapshot(tmp_path):
    repository = hub(tmp_path, ("abc", "def"), "def\n")
    assert open_checkpoint(repository).release.name == "LingBot-World Fast"
    assert find_package(repository).causal == repository / "snapshots/def"
    (repository / "refs/main").write_text("../../elsewhere")
    with pytest.raises(CheckpointError, match="it holds blobs, refs, snapshots"):
        open_checkpoint(repository)


def test_what_a_broken_download_left_is_named(tmp_path):
    repository = hub(tmp_path)
    (repository / "blobs/abc").rename(repository / "blobs/abc.incomplete")
    for path, message in (
        (repository, r"model.safetensors is a link to a file that is not there.*not finished \(abc.incomplete\)"),
        (repository / "snapshots/abc/model.safetensors", r"a link to ../../blobs/abc, which is not there"),
        (repository / "blobs/abc.incomplete", "an unfinished download"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


@pytest.mark.parametrize("name", ["model.safetensors", "t5_vae.safetensors", "my_vae_test_t5.safetensors"])
@pytest.mark.parametrize("kind", ["VAE: ", "text encoder: ", "expert: "])
def test_inspect_tells_a_file_by_its_tensors(tmp_path, umt5, capsys, name, kind):
    made = {"VAE: ": vae_tensors(0), "text encoder: ": umt5, "expert: ": random_state(SMALL)}
    save_file(made[kind], tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["inspect", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out.startswith(kind)


def in_8_bits(tensors, scale, lost=()):
    """ComfyUI's older form: each matrix of the blocks divided by its scale, without the scales that are `lost`."""
    eight = {}
    for key, value in tensors.items():
        if key.startswith("blocks.") and value.ndim == 2 and key.endswith(".weight") and "embed" not in key:
            factor = value.abs().max() / 448 if scale is None else torch.tensor(scale)
            eight[key] = (value / factor).to(torch.float8_e4m3fn)
            if key not in lost and "every" not in lost:
                eight[key.removesuffix("weight") + "scale_weight"] = factor
    return tensors | eight


@pytest.mark.parametrize("scale", [None, 0.01])
def test_a_scale_that_is_lost_is_missed(tmp_path, umt5, scale):
    file, lost = tmp_path / "t5.safetensors", "blocks.0.attn.q.weight"
    save_file(in_8_bits(umt5, scale), file)
    assert open_weights(file).quantization == "fp8"
    save_file(in_8_bits(umt5, scale, [lost]), file)
    with pytest.raises(CheckpointError, match=f"{lost}: it has no weight_scale, which this layer has"):
        open_weights(file)


def test_a_layer_that_no_block_has_may_lack_a_scale(tmp_path):
    """Converters that scale the blocks' layers round the others to 8 bits as they are."""
    eight = in_8_bits(random_state(SMALL), None)
    eight["head.head.weight"] = eight["head.head.weight"].to(torch.float8_e4m3fn)
    save_file(eight, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert open_checkpoint(tmp_path).quantized["head.head.weight"].scale is None


def test_scales_that_are_all_lost_are_missed(tmp_path, umt5):
    save_file(in_8_bits(umt5, None, ["every"]), tmp_path / "t5.safetensors")
    with pytest.raises(CheckpointError, match="its values go beyond 200, so its weight_scale is missing"):
        open_weights(tmp_path / "t5.safetensors")
    save_file(in_8_bits(umt5, 1.0, ["every"]), tmp_path / "t5.safetensors")
    assert open_weights(tmp_path / "t5.safetensors").quantization == "fp8"


@pytest.mark.parametrize("odd", [torch.eye(64).to_sparse(), torch.empty(64, 64, device="meta")], ids=["sparse", "meta"])
def test_tensors_without_plain_values_are_refused(tmp_path, odd):
    torch.save({**random_state(SMALL), "blocks.0.self_attn.q.weight": odd}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match="1 tensors are sparse or without values"):
        open_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["wan.safetensors", "WAN.SAFETENSORS"])
def test_macs_hidden_files_are_no_weights(tmp_path, name):
    folder = expert(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / name)
    (folder / f"._{name}").write_bytes(b"\0\5\x16\7")
    assert open_checkpoint(folder).files == [folder / name]


def test_macs_hidden_files_are_no_parts_of_a_package(tmp_path, toy_package):
    for item in toy_package.iterdir():
        (tmp_path / item.name).symlink_to(item)
        if item.is_file():
            (tmp_path / f"._{item.name}").write_bytes(b"\0\5\x16\7")
    package = find_package(tmp_path)
    assert not any(path.name.startswith(".") for path in (package.text_encoder, package.vae))


@pytest.mark.parametrize(
    ("wrapped", "words"),
    [
        (lambda state: {"generator": state, "critic": state, "step": 7}, None),
        (
            lambda state: {"model_state_dict": state, "optimizer": {"state": {0: {"m": torch.ones(2)}}}, "epoch": 3},
            None,
        ),
        (lambda state: {"state_dict": {"model." + key: each for key, each in state.items()}, "callbacks": {}}, None),
        (lambda state: {"module": {"_fsdp_wrapped_module." + key: each for key, each in state.items()}}, None),
        (lambda state: {"model": state, "scaler": {"scale": torch.ones(())}, "step": torch.ones(())}, None),
        (lambda state: {"generator": state, "generator_ema": state}, r"several models \(generator, generator_ema\)"),
        (lambda state: {"step": 7, "log": ["a"]}, "2 values are not tensors"),
    ],
)
def test_a_training_checkpoint_is_opened_where_one_model_is_in_it(tmp_path, wrapped, words):
    torch.save(wrapped(random_state(SMALL)), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    if words is None:
        assert open_checkpoint(tmp_path).shapes.keys() == SMALL.parameter_shapes().keys()
    else:
        with pytest.raises(CheckpointError, match=words):
            open_checkpoint(tmp_path)


def test_parts_of_names_that_wrappers_add_are_dropped(tmp_path):
    names = {key: key.replace(".self_attn.", "._checkpoint_wrapped_module.self_attn.") for key in random_state(SMALL)}
    save_file(
        {f"_orig_mod.{names[key]}": each for key, each in random_state(SMALL).items()}, tmp_path / "x.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert open_checkpoint(tmp_path).shapes.keys() == SMALL.parameter_shapes().keys()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_vae_or_an_embedding_that_is_not_finite(tmp_path, umt5, bad):
    tensors = vae_tensors(0)
    tensors["decoder.conv1.bias"][1] = bad
    save_file(tensors, tmp_path / "vae.safetensors")
    with pytest.raises(CheckpointError, match=r"in 1 tensors \(decoder.conv1.bias\)"):
        load_vae(tmp_path / "vae.safetensors")
    weights = umt5 | {"blocks.0.ffn.fc1.weight": torch.full_like(umt5["blocks.0.ffn.fc1.weight"], bad)}
    save_file(weights, tmp_path / "t5.safetensors")
    with pytest.raises(TextError, match="embedding of a prompt is NaN"):
        encode_ids([[1, 2]], open_weights(tmp_path / "t5.safetensors"))


def test_a_comfyui_checkpoint_gives_model_encoder_and_vae(toy_package, tmp_path):
    """As Save Checkpoint writes them: all in one file."""
    parts = {
        "model.diffusion_model.": toy_package / "high_noise_model_bnb_nf4",
        "text_encoders.umt5xxl.transformer.": toy_package / "models_t5_umt5-xxl-enc-bf16.pth",
        "vae.": toy_package / "Wan2.1_VAE.pth",
    }
    tensors = {
        prefix + name: entry.view().clone()
        for prefix, path in parts.items()
        for name, entry in read_tensors(path).items()
    }
    save_file(tensors, tmp_path / "all.safetensors")
    shutil.copy(toy_package / "high_noise_model_bnb_nf4/config.json", tmp_path)
    readers = lambda path: open_checkpoint(path).shapes, lambda path: open_weights(path).shapes, read_vae
    for read, alone in zip(readers, parts.values(), strict=True):
        found, wanted = read(tmp_path / "all.safetensors"), read(alone)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(torch.as_tensor(found[name]), torch.as_tensor(wanted[name])) for name in wanted)
