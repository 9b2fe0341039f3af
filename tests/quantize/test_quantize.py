"""Official weights made into 4-bit files: bitsandbytes' bytes, loadable by the engine, whole or not there at all."""

import json
import shutil

import pytest
import torch
from lingbot_world.loaders import find_package, load_expert, open_checkpoint
from lingbot_world.model.quantized import codec
from lingbot_world.quantize import verify
from lingbot_world.text import encode
from lingbot_world.text.weights import open_weights
from lingbot_world.toy.weights import vae_tensors
from lingbot_world.weights.quantized import quantized_tensors
from quantize_cases import run, silent
from safetensors.torch import load_file, save_file


@pytest.fixture
def causal(golden):
    return golden / "causal/model"


@pytest.fixture(scope="session")
def official(golden, tmp_path_factory):
    """A package as it is published: plain experts in folders, text encoder, tokenizer and a random VAE."""
    root = tmp_path_factory.mktemp("official") / "lingbot-world-base-cam"
    for role in ("high", "low"):
        folder = root / f"{role}_noise_model"
        folder.mkdir(parents=True)
        shutil.copy(golden / f"model/{role}_noise_model_fp32.safetensors", folder / "model.safetensors")
        shutil.copy(golden / "model/config.json", folder)
    text = load_file(golden / "t5/t5_encoder_fp32.safetensors")
    torch.save({name: value.bfloat16() for name, value in text.items()}, root / "models_t5_umt5-xxl-enc-bf16.pth")
    shutil.copytree(golden / "t5/tokenizer", root / "google/umt5-xxl")
    torch.save(vae_tensors(0), root / "Wan2.1_VAE.pth")
    return root


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [64 * 256, 64 * 1000, 64 * 37 + 10, 4096 * 90])
@pytest.mark.parametrize("blocksize", [64, 128])
def test_the_bytes_are_those_of_bitsandbytes(dtype, count, blocksize):
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = (0.03 * torch.randn(count, generator=torch.Generator().manual_seed(count))).to(dtype)
    theirs, state = functional.quantize_4bit(weight, blocksize=blocksize, compress_statistics=True, quant_type="nf4")
    ours, scales = codec.encode(weight, blocksize)
    assert torch.equal(ours, theirs)
    assert torch.equal(scales.absmax, state.absmax)
    assert torch.equal(scales.nested_absmax, state.state2.absmax)
    assert torch.equal(scales.offset, state.offset)


def test_parts_of_a_large_weight_give_the_bytes_of_the_whole(monkeypatch):
    weight = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    for search in (False, True):
        whole, scales = codec.encode(weight, search=search)
        error = codec.squared_error(weight, whole, scales)
        monkeypatch.setattr(codec, "_ENCODED_AT_A_TIME", {"cpu": 4096})
        parts, part_scales = codec.encode(weight, search=search)
        assert torch.equal(whole, parts)
        assert torch.equal(scales.absmax, part_scales.absmax)
        assert codec.squared_error(weight, parts, part_scales) == pytest.approx(error)
        monkeypatch.undo()


def test_search_leaves_nine_percent_less_error_on_gaussian_weights():
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    norm = codec.squared_sum(weight)
    plain, searched = (
        (codec.squared_error(weight, *codec.encode(weight, search=search)) / norm) ** 0.5 for search in (False, True)
    )
    assert plain == pytest.approx(0.092, abs=5e-4)
    assert searched < 0.915 * plain


def test_search_leaves_a_third_less_error_for_inputs_that_are_alike_in_a_block():
    weight = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    plain, searched = (summed_error(weight, search=search) for search in (False, True))
    assert searched < 0.7 * plain


def test_search_keeps_a_trained_camera_layer_better_than_the_largest_value(toy_world):
    """The toy's was trained with inputs of which 256 are alike, so the sums of its blocks count."""
    expert = open_checkpoint(toy_world / "low_noise_model")
    weight = expert.tensors["patch_embedding_wancamctrl.weight"].view().float()
    plain, squares, searched = (
        summed_error(weight, 256, first=3, **kw) for kw in ({}, {"search": True, "sum_weight": 0}, {"search": True})
    )
    assert searched < 0.8 * min(plain, squares)


def summed_error(weight, count=64, first=None, **kw):
    """The relative error of the sums of each `count` values of a row, or of the `first` such sums of each row."""
    decoded = codec.decode(*codec.encode(weight, **kw), tuple(weight.shape), torch.float32)
    wanted, got = (part.view(len(weight), -1, count).sum(2)[:, :first] for part in (weight, decoded))
    return ((got - wanted).norm() / wanted.norm()).item()


def test_bitsandbytes_decodes_searched_scales_to_the_same_values():
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    packed, scales = codec.encode(weight, search=True)
    assert (scales.block_scales() < 0).any()  # the table's two halves are exchanged in such blocks
    outer = functional.QuantState(
        absmax=scales.nested_absmax, code=scales.nested_code, blocksize=256, dtype=torch.float32
    )
    state = functional.QuantState(
        absmax=scales.absmax,
        shape=weight.shape,
        code=scales.code,
        blocksize=64,
        quant_type="nf4",
        dtype=weight.dtype,
        offset=scales.offset,
        state2=outer,
    )
    decoded = functional.dequantize_4bit(packed, state)
    assert torch.equal(decoded, codec.decode(packed, scales, (64, 256), torch.float32))


def test_a_block_of_zeros_stays_zero():
    weight = torch.randn(4, 64)
    weight[1] = 0
    packed, scales = codec.encode(weight, nested=False, search=True)
    decoded = codec.decode(packed, scales, (4, 64), torch.float32)
    assert not decoded[1].any()
    assert torch.isfinite(decoded).all()


@pytest.mark.parametrize("search", [False, True])
def test_a_causal_model_becomes_a_loadable_package(causal, tmp_path, search):
    metas = run(causal, tmp_path / "nf4", search=search)
    checkpoint = open_checkpoint(tmp_path / "nf4")
    assert checkpoint.config.causal
    assert checkpoint.config == open_checkpoint(causal).config
    assert checkpoint.quantization == "nf4"
    assert find_package(tmp_path / "nf4").causal == tmp_path / "nf4"
    meta = json.loads((tmp_path / "nf4/quantization_meta.json").read_text())
    assert [*metas.values()] == [meta]
    assert meta["source"] == "model"
    assert meta["quant"]["format"] == "bnb_nf4"
    original = load_file(causal / "diffusion_pytorch_model.safetensors")
    for name, parameter in load_expert(checkpoint, dtype=torch.float32).named_parameters():
        if name in meta["relative_rms"]:
            error = (parameter.decode(torch.float32) - original[name]).norm() / original[name].norm()
            assert error == pytest.approx(meta["relative_rms"][name], rel=1e-3)
            assert error < (0.09 if search else 0.1)
        else:
            assert torch.equal(parameter, original[name].bfloat16().float())
    assert not list(tmp_path.glob("*.part"))


def test_a_package_keeps_its_layout_and_its_other_parts(official, tmp_path):
    run(official, tmp_path / "nf4")
    package = find_package(tmp_path / "nf4")
    assert package.experts.high.name == "high_noise_model_bnb_nf4"
    assert package.text_encoder.read_bytes() == (official / package.text_encoder.name).read_bytes()
    assert package.text_encoder.samefile(official / package.text_encoder.name)
    assert (package.tokenizer / "tokenizer.json").is_file()
    assert package.vae.is_file()
    assert sorted(path.name for path in package.experts.low.iterdir()) == [
        "config.json",
        "model.safetensors",
        "quantization_meta.json",
    ]
    found = verify(tmp_path / "nf4", silent)
    assert [item.kind.split(" of ")[0].split(",")[0] for item in found] == [
        "high-noise LingBot-World expert",
        "low-noise LingBot-World expert",
        "umt5 text encoder",
        "Wan 2.1 VAE",
    ]
    assert [item.checked == item.tensors for item in found] == [True, True, False, False]


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    ],
)
def test_the_text_encoder_streams_from_four_bits(official, tmp_path, device):
    run(official, tmp_path / "nf4", t5=True, search=True)
    package = find_package(tmp_path / "nf4")
    file, original = package.text_encoder, official / "models_t5_umt5-xxl-enc-bf16.pth"
    assert file.name == "models_t5_umt5-xxl-enc-bnb_nf4.safetensors"
    assert file.stat().st_size < original.stat().st_size / 2
    weights, decoded = open_weights(file), {}
    for name, entry in weights.tensors.items():
        if name in weights.quantized:
            decoded[name] = decoded_weight(weights.quantized[name])
        elif "weight." not in name:
            decoded[name] = entry.view().float()
    save_file(decoded, tmp_path / "t5_decoded.safetensors")
    prompts = ["A castle in the morning mist.", "a"]
    results = [
        encode(prompts, path, official, device, torch.float32)
        for path in (original, tmp_path / "t5_decoded.safetensors", file)
    ]
    for plain, wanted, got in zip(*results, strict=True):
        assert (got - wanted).norm() < 1e-5 * wanted.norm()
        assert (got - plain).norm() < 0.4 * plain.norm()  # random weights: errors of 8 % in each of them add up
    assert verify(tmp_path / "nf4", silent)[2].checked


def decoded_weight(weight):
    tensors = {entry.name: entry.view() for entry in weight.entries}
    made = quantized_tensors({weight.name: weight}, tensors, None, torch.device("cpu"))
    return made[weight.name].decode(torch.float32)
