"""Opening experts: what is read from good files, and the one clear error for tensors that are no expert's."""

import json
import shutil

import pytest
import torch
from checkpoint_cases import NF4, refused
from lingbot_world.errors import CheckpointError
from lingbot_world.loaders import load_expert, open_checkpoint, state_tensors
from safetensors.torch import load_file, save_file

LAYER = "blocks.1.ffn.0.weight"
STATE = f"{LAYER}.quant_state.bitsandbytes__nf4"


@pytest.fixture
def nf4(golden):
    """The tensors of the golden NF4 expert, free to be broken."""
    return load_file(golden / NF4 / "model.safetensors")


@pytest.fixture
def put(tmp_path, golden):
    """Save tensors as an expert's folder, with the golden config.json."""

    def save(tensors, name="model.safetensors"):
        shutil.copy(golden / NF4 / "config.json", tmp_path)
        save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / name)
        return tmp_path

    return save


def changed_state(tensors, **changes):
    state = json.loads(bytes(tensors[STATE].numpy())) | changes
    return tensors | {STATE: torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)}


# What good files say


@pytest.mark.parametrize("source", [NF4, f"{NF4}/model.safetensors", "nf4/pt_fallback/high_noise_model_bnb_nf4"])
def test_reads_the_community_formats(golden, source):
    checkpoint = open_checkpoint(golden / source)
    assert (checkpoint.quantization, checkpoint.config.control, checkpoint.config.num_heads) == ("nf4", 6, 2)
    assert (checkpoint.config.text_len, checkpoint.parameters) == (32, 375_936)
    assert checkpoint.kind == "LingBot-World expert"
    assert len(checkpoint.quantized) == 51
    assert checkpoint.shapes == checkpoint.config.parameter_shapes()


def test_reads_a_single_file_of_plain_tensors(golden):
    checkpoint = open_checkpoint(golden / "model/high_noise_model_fp32.safetensors")
    assert checkpoint.quantization is None
    assert checkpoint.nbytes == 4 * checkpoint.parameters


@pytest.fixture
def shards(plain, tmp_path, golden):
    shutil.copy(golden / NF4 / "config.json", tmp_path)
    names, weight_map = sorted(plain), {}
    for number, part in enumerate((names[:30], names[30:], []), 1):
        file = f"diffusion_pytorch_model-{number:05d}-of-00002.safetensors"
        if part:
            save_file({name: plain[name] for name in part}, tmp_path / file)
            weight_map |= dict.fromkeys(part, file)
    (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


@pytest.mark.parametrize(
    "name", ["", "diffusion_pytorch_model.safetensors.index.json", "diffusion_pytorch_model-00002-of-00002.safetensors"]
)
def test_reads_official_shards(shards, plain, name):
    checkpoint = open_checkpoint(shards / name)
    assert len(checkpoint.files) == 2
    state = state_tensors(checkpoint, torch.float32)
    assert all(torch.equal(state[key], plain[key]) for key in plain)


def test_reads_shards_without_their_index(shards):
    (shards / "diffusion_pytorch_model.safetensors.index.json").unlink()
    assert len(open_checkpoint(shards).files) == 2


def test_a_plain_wan_expert_has_no_camera(plain, put):
    wan = {key: value for key, value in plain.items() if "cam" not in key and "c2ws" not in key}
    checkpoint = open_checkpoint(put(wan))
    assert checkpoint.config.control is None
    assert checkpoint.kind == "plain Wan expert"


def test_prefers_safetensors_to_pt(golden, nf4, put):
    folder = put(nf4)
    shutil.copy(golden / "nf4/pt_fallback/high_noise_model_bnb_nf4/model.pt", folder)
    assert open_checkpoint(folder).files[0].suffix == ".safetensors"


# What bad files give


def test_all_wrong_keys_are_in_one_error(plain, put):
    plain["blocks.1.extra"] = plain.pop("blocks.1.norm3.bias")
    plain["head.head.bias"] = torch.zeros(63)
    refused(
        put(plain),
        "1 missing: blocks.1.norm3.bias",
        "1 unexpected: blocks.1.extra",
        "1 of another shape: head.head.bias [63] (expected [64])",
    )


@pytest.mark.parametrize(
    ("lost", "words"),
    [(f".{name}", f"{name} missing") for name in ("absmax", "quant_map", "nested_absmax", "nested_quant_map")]
    + [(STATE.removeprefix(LAYER), "quant_state.bitsandbytes__nf4 is missing"), ("", "the weight itself missing")],
)
def test_a_part_of_a_weight_that_is_missing_is_named(nf4, put, lost, words):
    del nf4[LAYER + lost]
    refused(put(nf4), LAYER, words)


def test_a_packed_weight_without_any_component_is_named(nf4, put):
    for key in [key for key in nf4 if key.startswith(f"{LAYER}.")]:
        del nf4[key]
    refused(put(nf4), f"{LAYER} is uint8 without a bitsandbytes quant_state")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blocksize": 128}, ("absmax: found 128", "expected 64", "block size 128")),
        ({"blocksize": 60}, ("block size 60", "expected one of")),
        ({"blocksize": None}, ("block size None",)),
        ({"nested_blocksize": 0}, ("nested block size 0",)),
        ({"shape": [128, 128]}, ("packed bytes: found 4,096", "expected 8,192")),
        ({"shape": [64, 128]}, ("of another shape", f"{LAYER} [64, 128] (expected [128, 64])")),
        ({"shape": [8192]}, ("shape [8192]", "two positive sizes")),
        ({"dtype": "float8"}, ("dtype 'float8'",)),
        ({"quant_type": "int4"}, ("quant type 'int4'",)),
        ({"nested_offset": float("nan")}, ("nested offset nan", "finite")),
        ({"nested_offset": None}, ("nested offset None",)),
    ],
)
def test_a_quant_state_that_does_not_fit_is_named(nf4, put, changes, words):
    refused(put(changed_state(nf4, **changes)), LAYER, *words)


def test_a_quant_state_without_its_offset_is_named(nf4, put):
    state = json.loads(bytes(nf4[STATE].numpy()))
    del state["nested_offset"], state["nested_blocksize"]
    nf4[STATE] = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    refused(put(nf4), LAYER, "nested_offset of the quant_state missing")


def test_a_quant_state_that_is_not_json_is_named(nf4, put):
    refused(put(nf4 | {STATE: torch.zeros(9, dtype=torch.uint8)}), LAYER, "unreadable quant_state")


@pytest.mark.parametrize("component", ["nested_absmax", "nested_quant_map", "quant_map"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scales_that_are_not_finite_are_named(nf4, put, component, value):
    nf4[f"{LAYER}.{component}"][-1] = value
    refused(put(nf4), f"{LAYER}.{component}", "NaN or infinity")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_other_quantizations_are_named(plain, put, dtype):
    refused(put(plain | {LAYER: plain[LAYER].to(dtype)}), LAYER, str(dtype).removeprefix("torch."))


def test_a_missing_shard_is_named(shards):
    (shards / "diffusion_pytorch_model-00002-of-00002.safetensors").unlink()
    refused(shards, "1 of its 2 shards missing", "diffusion_pytorch_model-00002-of-00002.safetensors")


def test_a_tensor_in_two_shards_is_named(shards, plain):
    twice = dict(list(plain.items())[:1])
    first = shards / "diffusion_pytorch_model-00001-of-00002.safetensors"
    second = load_file(shards / "diffusion_pytorch_model-00002-of-00002.safetensors")
    save_file(load_file(first) | twice, first)
    save_file(second | twice, shards / "diffusion_pytorch_model-00002-of-00002.safetensors")
    refused(shards, "in another shard as well", *twice)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"dim": 128, "num_heads": 2}, ("dim 128 (tensors: 64)", "config.json")),
        ({"num_heads": 3}, ("3 heads",)),
        ([], ("expected a JSON object",)),
    ],
)
def test_a_config_of_another_model_is_named(plain, put, content, words):
    folder = put(plain)
    (folder / "config.json").write_text(json.dumps(content))
    refused(folder, *words)


def test_quantization_meta_has_to_agree(plain, put):
    folder = put(plain)
    (folder / "quantization_meta.json").write_text(json.dumps({"quant": {"format": "bnb_nf4", "quant_type": "nf4"}}))
    refused(folder, "quantization_meta.json has nf4", "not quantized")


def test_an_index_without_a_variant_comes_before_one_with_it(shards, plain):
    variant = "diffusion_pytorch_model.fp16-00001-of-00001.safetensors"
    save_file(plain, shards / variant)
    index = {"weight_map": dict.fromkeys(plain, variant)}
    (shards / "diffusion_pytorch_model.fp16.safetensors.index.json").write_text(json.dumps(index))
    assert not any("fp16" in file.name for file in open_checkpoint(shards).files)


def test_an_index_of_safetensors_comes_before_one_of_torch_files(shards):
    (shards / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model-1-of-1.bin"}}))
    assert all(file.suffix == ".safetensors" for file in open_checkpoint(shards).files)


def test_several_weight_files_are_a_question(plain, put):
    folder = put(plain, "a.safetensors")
    put(plain, "b.safetensors")
    refused(folder, "several weight files (a.safetensors, b.safetensors)")


def test_nothing_of_a_bad_file_reaches_a_model(nf4, put):
    nf4[f"{LAYER}.nested_absmax"][0] = float("nan")
    with pytest.raises(CheckpointError, match="NaN"):
        load_expert(put(nf4))
