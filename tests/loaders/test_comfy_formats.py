"""ComfyUI's rotated int8, nvfp4 and mxfp8: decoded to comfy-kitchen's bits for experts, text encoders and VAEs."""

import json

import pytest
import torch
from checkpoint_cases import refused
from lingbot_world.errors import TextError
from lingbot_world.headless.command.cli import main
from lingbot_world.loaders import load_expert, open_checkpoint, state_tensors
from lingbot_world.model.layers.operations import Linear
from lingbot_world.model.quantized.parameters import LayoutParameter
from lingbot_world.quantize import verify
from lingbot_world.text import encode
from lingbot_world.text.weights import open_weights
from lingbot_world.vae import read_vae
from quantize_cases import run, silent
from safetensors.torch import load_file, save_file
from scaled_cases import as_tensor
from test_model_accuracy import relative_rms

pytestmark = pytest.mark.usefixtures("one_thread")
LAYER = "blocks.1.ffn.0"
CONVROT = {"per_channel": True, "convrot": True, "convrot_groupsize": 16}
FORMS = {
    "int8_convrot": ("TensorWiseINT8Layout", CONVROT, {"format": "int8_tensorwise", **CONVROT}, 0.02),
    "nvfp4": ("TensorCoreNVFP4Layout", {}, {"format": "nvfp4"}, 0.12),
    "mxfp8": ("TensorCoreMXFP8Layout", {}, {"format": "mxfp8"}, 0.04),
}
EVERY = pytest.mark.parametrize("form", FORMS)


def quantized(tensors, form, names=lambda _name, tensor: tensor.ndim == 2):
    """The tensors of a file as core's layers save them, and each weight as the layout has it."""
    from comfy_kitchen.tensor import QuantizedTensor  # here, as this imports torch's compiler

    layout, options, told, _ = FORMS[form]
    made, weights = {}, {}
    for name, tensor in tensors.items():
        if not names(name, tensor):
            made[name] = tensor
            continue
        weights[name] = QuantizedTensor.from_float(tensor.float(), layout, **options)
        made |= weights[name].state_dict(name)
        made[name.removesuffix("weight") + "comfy_quant"] = as_tensor(told)
    return made, weights


def stored(tensors):
    """As safetensors can hold them."""
    return {name: as_bytes(tensor).contiguous() for name, tensor in tensors.items()}


def as_bytes(tensor):
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e8m0fnu else tensor


def matrices(name, tensor):
    return tensor.ndim == 2 and "pos_embedding" not in name and not any(size % 32 for size in tensor.shape)


@EVERY
def test_an_expert_is_what_comfy_kitchen_decodes(plain, folder, form):
    made, weights = quantized(plain, form)
    save_file(stored(made), folder / "x.safetensors")
    checkpoint = open_checkpoint(folder / "x.safetensors")
    assert (checkpoint.quantization, len(checkpoint.quantized)) == (form, 51)
    for dtype in (torch.bfloat16, torch.float32):
        model, state = load_expert(checkpoint, dtype=dtype), state_tensors(checkpoint, dtype)
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Linear)}
        for name, layer in layers.items():
            want = weights[f"{name}.weight"].to(dtype).dequantize()
            assert isinstance(layer.weight, LayoutParameter)
            assert torch.equal(layer.weight.decode(dtype), want)
            assert torch.equal(state[f"{name}.weight"].dequantize(), want)
            assert layer.weight.data_ptr() == checkpoint.quantized[f"{name}.weight"].values.view().data_ptr()
            assert relative_rms(want.float(), plain[f"{name}.weight"]) < FORMS[form][3]


@EVERY
def test_streamed_blocks_loras_and_8_bits_take_it(plain, folder, form, check_uses):
    save_file(stored(quantized(plain, form)[0]), folder / "x.safetensors")
    check_uses(folder / "x.safetensors")


@EVERY
@pytest.mark.parametrize("embedding", [False, True])
def test_a_text_encoder_gives_the_decoded_ones_embeddings(golden, tmp_path, form, embedding):
    tensors = load_file(golden / "t5/t5_encoder_fp32.safetensors")
    tensors["token_embedding.weight"] = torch.nn.functional.pad(tensors["token_embedding.weight"], (0, 0, 0, 20))
    made, weights = quantized(
        tensors, form, lambda name, tensor: matrices(name, tensor) and (embedding or "token" not in name)
    )
    assert ("token_embedding.weight" in weights) is embedding
    save_file(stored(made), tmp_path / "t5.safetensors")
    decoded = {name: weight.dequantize() for name, weight in weights.items()}
    save_file(tensors | decoded, tmp_path / "decoded.safetensors")
    prompts, tokenizer = ["A castle in the morning mist.", "a"], golden / "t5/tokenizer"
    got, want, exact = (
        encode(prompts, path, tokenizer, dtype=torch.float32)
        for path in (tmp_path / "t5.safetensors", tmp_path / "decoded.safetensors", golden / "t5/t5_encoder_fp32.pth")
    )
    assert all(torch.equal(*pair) for pair in zip(got, want, strict=True))
    least = 0.85 if form == "nvfp4" else 0.98
    assert all(torch.cosine_similarity(*pair, dim=1).mean() > least for pair in zip(got, exact, strict=True))
    assert open_weights(tmp_path / "t5.safetensors").quantization == form
    assert verify(tmp_path / "t5.safetensors", silent)[0].kind == f"umt5 text encoder, {form}"


def test_the_cases_of_text_encoders(golden, tmp_path, capsys):
    """Case 07: int8 with rotation under Hugging Face's names; plain fp8 becomes 4 bits."""
    tensors = load_file(golden / "t5/t5_encoder_fp32.safetensors")
    plain = {
        name: tensor.to(torch.float8_e4m3fn) if matrices(name, tensor) else tensor for name, tensor in tensors.items()
    }
    save_file(plain, tmp_path / "t5_fp8.safetensors")
    assert main(["quantize", str(tmp_path / "t5_fp8.safetensors"), str(tmp_path / "made"), "--device", "cpu"]) == 0
    assert main(["verify", str(tmp_path / "made")]) == 0
    made = tmp_path / "made/models_t5_umt5-xxl-enc-bnb_nf4.safetensors"
    got, want = (
        encode("A castle.", path, golden / "t5/tokenizer", dtype=torch.float32)[0]
        for path in (made, golden / "t5/t5_encoder_fp32.pth")
    )
    assert torch.cosine_similarity(got, want, dim=1).mean() > 0.85  # random weights: errors of 8 % in each add up


def test_tensors_that_no_encoder_has_are_a_line_or_an_error(golden, tmp_path, capsys):
    tensors = load_file(golden / "t5/t5_encoder_fp32.safetensors")
    file, extra = (
        tmp_path / "t5.safetensors",
        {"decoder.block.0.x.weight": torch.ones(2), "spiece_model": torch.ones(2)},
    )
    save_file(tensors | extra, file)
    for command in (["inspect", str(file)], ["verify", str(file)]):
        assert main(command) == 0
        assert "1 of its tensors are not the encoder's and are not read: decoder.block.0.x" in capsys.readouterr().out
    for name in ("blocks.0.attn.q.bias", "token_embedding.bias"):
        save_file(tensors | {name: torch.ones(2)}, file)
        with pytest.raises(TextError, match=f"1 unexpected: {name}"):
            open_weights(file)


@pytest.mark.parametrize(("format_", "kind", "error"), [("int8", "int8", 0.02), ("nvfp4", "nvfp4", 0.12)])
def test_quantize_writes_it(plain, folder, format_, kind, error):
    save_file({name: tensor.bfloat16() for name, tensor in plain.items()}, folder / "x.safetensors")
    zero = "blocks.0.ffn.0.weight"
    save_file({**plain, zero: torch.zeros_like(plain[zero])}, folder / "x.safetensors")
    metas = run(folder / "x.safetensors", folder / "made", format=format_, keep=("head.head",))
    checkpoint = open_checkpoint(folder / "made")
    (meta,) = metas.values()
    assert (checkpoint.quantization, len(checkpoint.quantized), meta["kept"]) == (kind, 50, ["head.head.weight"])
    model = load_expert(checkpoint, dtype=torch.float32)
    for name in checkpoint.quantized:
        got = model.get_parameter(name).decode(torch.float32)
        if name == zero:
            assert not got.any()
            continue
        assert relative_rms(got, plain[name]) == pytest.approx(meta["relative_rms"][name], rel=1e-3)
        assert relative_rms(got, plain[name]) < error
    (found,) = verify(folder / "made", silent)
    assert found.kind.startswith(f"LingBot-World expert, {kind}")
    assert found.checked == found.tensors


def test_the_vae_in_fp8_with_scales(toy_package, tmp_path):
    plain = {name: tensor.float() for name, tensor in read_vae(toy_package / "Wan2.1_VAE.pth").items()}
    made, wanted = {}, {}
    for name, tensor in plain.items():
        made[name] = wanted[name] = tensor
        if tensor.ndim >= 4 and name.endswith("weight"):
            made[name] = (tensor * 16).to(torch.float8_e4m3fn)
            made[f"{name}_scale"] = torch.tensor(1 / 16)
            wanted[name] = made[name].float() / 16
    save_file({name: tensor.contiguous() for name, tensor in made.items()}, tmp_path / "vae.safetensors")
    found = read_vae(tmp_path / "vae.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@EVERY
def test_quantize_takes_it(plain, folder, form):
    save_file(stored(quantized(plain, form)[0]), folder / "x.safetensors")
    run(folder / "x.safetensors", folder / "made")
    made = load_expert(folder / "made", dtype=torch.float32).get_parameter(f"{LAYER}.weight")
    assert relative_rms(made.decode(torch.float32), plain[f"{LAYER}.weight"]) < 0.16
    assert verify(folder / "x.safetensors", silent)[0].kind == f"LingBot-World expert, {form}"


@pytest.mark.parametrize(
    ("form", "changes", "words"),
    [
        ("nvfp4", {"weight_scale": None}, "nvfp4 with weight_scale_2, expected weight_scale and weight_scale_2"),
        ("nvfp4", {"weight_scale_2": None}, "nvfp4 with weight_scale, expected weight_scale and weight_scale_2"),
        ("nvfp4", {"weight_scale": torch.zeros(3, 3, dtype=torch.uint8)}, "its weight_scale is torch.uint8 [3, 3]"),
        ("nvfp4", {"weight_scale_2": torch.zeros(2)}, "its weight_scale_2 is torch.float32 [2], expected one"),
        ("nvfp4", {"weight_scale_2": torch.tensor(float("nan"))}, "NaN or infinity"),
        ("nvfp4", {"weight": torch.zeros(128, 30, dtype=torch.uint8)}, "expected a matrix of multiples of 16"),
        ("nvfp4", {"comfy_quant": None}, "uint8 without the format that ComfyUI writes next to it"),
        ("nvfp4", {"pre_quant_scale": torch.ones(64)}, "pre_quant_scale (inputs are smoothed before the product)"),
        ("mxfp8", {"weight_scale_2": torch.tensor(1.0)}, "mxfp8 with weight_scale and weight_scale_2"),
        ("mxfp8", {"weight": torch.zeros(128, 40).to(torch.float8_e4m3fn)}, "expected a matrix of multiples of 32"),
        ("int8_convrot", {"weight_scale": None}, "int8 without its weight_scale"),
        (
            "int8_convrot",
            {"comfy_quant": as_tensor({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 24})},
            "rotated (convrot) in groups of 24, expected a power of 4 that divides a row",
        ),
    ],
)
def test_what_cannot_be_read_is_named(plain, folder, form, changes, words):
    made, _ = quantized(plain, form)
    made |= {f"{LAYER}.{part}": tensor for part, tensor in changes.items()}
    save_file(stored({name: tensor for name, tensor in made.items() if tensor is not None}), folder / "x.safetensors")
    refused(folder / "x.safetensors", LAYER, words)


def test_the_header_may_say_it(plain, folder):
    made, _ = quantized(plain, "nvfp4")
    told = {name.removesuffix(".comfy_quant"): {"format": "nvfp4"} for name in made if name.endswith("comfy_quant")}
    tensors = {name: tensor for name, tensor in made.items() if not name.endswith("comfy_quant")}
    save_file(stored(tensors), folder / "x.safetensors", {"_quantization_metadata": json.dumps({"layers": told})})
    assert open_checkpoint(folder / "x.safetensors").quantization == "nvfp4"
