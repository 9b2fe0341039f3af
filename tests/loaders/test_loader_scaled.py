"""fp8 and int8 files in ComfyUI's formats: decoded to its bits, kept in 8 bits, and a clear error for other files."""

import json
import shutil
import threading

import pytest
import torch
from checkpoint_cases import NF4, refused
from lingbot_world.errors import InputError
from lingbot_world.headless.command.cli import main
from lingbot_world.loaders import load_expert, open_checkpoint, state_tensors
from lingbot_world.loaders.uploader import ChunkReader, Upload
from lingbot_world.model.layers.operations import Linear
from lingbot_world.model.ops.linear_8bit import DTYPES
from lingbot_world.model.quantized import parameters, scaled
from lingbot_world.quantize import verify
from quantize_cases import run, silent
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scaled_cases import E5M2, FP8, INT8, NAMES, as_tensor, core_decoded, in_8_bits, quantized, save
from test_model_accuracy import relative_rms

pytestmark = pytest.mark.usefixtures("one_thread")

LAYER = "blocks.1.ffn.0"
WEIGHT, SCALE = f"{LAYER}.weight", f"{LAYER}.weight_scale"
KINDS = pytest.mark.parametrize(
    ("dtype", "rows"), [(FP8, False), (FP8, True), (E5M2, False), (INT8, False), (INT8, True)]
)


@pytest.fixture
def file(golden, tmp_path):
    shutil.copy(golden / NF4 / "config.json", tmp_path)
    return tmp_path / "x.safetensors"


def in_header(file, plain, dtype=FP8, rows=False, **changes):
    """The model in 8 bits, said in the header; `changes` replace tensors, None drops one."""
    tensors, layers = quantized(plain, dtype, rows)
    tensors = {key: tensor for key, tensor in (tensors | changes).items() if tensor is not None}
    return save(file, tensors, {layer: {"format": NAMES[dtype]} for layer in layers})


@KINDS
@pytest.mark.parametrize("dtype_of_use", [torch.bfloat16, torch.float32])
def test_weights_are_what_comfyui_decodes(plain, file, dtype, rows, dtype_of_use):
    checkpoint = open_checkpoint(in_header(file, plain, dtype, rows))
    model, stored = load_expert(checkpoint, dtype=dtype_of_use), load_file(file)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Linear)}
    assert len(layers) == len(checkpoint.quantized) == 51
    for name, layer in layers.items():
        got = layer.weight.decode(dtype_of_use)
        assert torch.equal(got, core_decoded(stored[f"{name}.weight"], stored[f"{name}.weight_scale"], dtype_of_use))


def test_scales_are_converted_when_they_have_arrived(plain, file, monkeypatch):
    """Comfy-kitchen converts other floats than float32 as it makes ComfyUI's tensors. Copies begin when they are waited
    for here."""
    pytest.importorskip("comfy_kitchen")
    waited, copy, wait = threading.Event(), ChunkReader.copy_chunk, Upload.wait
    monkeypatch.setattr(ChunkReader, "copy_chunk", lambda reader, chunk: waited.wait() and copy(reader, chunk))
    monkeypatch.setattr(Upload, "wait", lambda upload, progress: waited.set() or wait(upload, progress))
    tensors = {
        name: tensor.bfloat16() if name.endswith("_scale") else tensor
        for name, tensor in quantized(plain, FP8)[0].items()
    }
    checkpoint = open_checkpoint(save(file, tensors))
    mapped, copied = (state_tensors(checkpoint, torch.bfloat16, copy=copy) for copy in (False, True))
    assert mapped[WEIGHT]._params.scale.dtype == torch.float32
    assert all(torch.equal(copied[name].dequantize(), mapped[name].dequantize()) for name in checkpoint.quantized)


@KINDS
def test_weights_stay_8_bits_and_in_their_file(plain, file, dtype, rows):
    checkpoint = open_checkpoint(in_header(file, plain, dtype, rows))
    model = load_expert(checkpoint)
    for name, weight in checkpoint.quantized.items():
        parameter = model.get_parameter(name)
        assert (parameter.dtype, parameter.data_ptr()) == (dtype, weight.values.view().data_ptr())
    assert checkpoint.nbytes < 0.3 * sum(tensor.nbytes for tensor in plain.values())


def test_every_way_to_say_it_gives_the_same_model(plain, file):
    tensors, layers = quantized(plain, FP8)
    wanted = open_checkpoint(in_header(file, plain))
    older = {name.replace("weight_scale", "scale_weight"): tensor for name, tensor in tensors.items()}
    older |= {f"{layer}.scale_input": torch.ones(()) for layer in layers}
    told = {
        f"{layer}.comfy_quant": as_tensor({"format": NAMES[FP8], "full_precision_matrix_mult": True})
        for layer in layers
    }
    inputs = {f"{layer}.input_scale": torch.ones(()) for layer in layers}
    prefixed = {f"model.diffusion_model.{name}": tensor for name, tensor in (tensors | inputs).items()}
    ways = {
        "scaled_fp8": (older | {"scaled_fp8": torch.zeros(2, dtype=FP8)}, None),
        "comfy_quant": (tensors | told | inputs, None),
        "a prefix": (prefixed, {f"model.diffusion_model.{layer}": {"format": NAMES[FP8]} for layer in layers}),
        "scales alone": (tensors, None),
    }
    for way, (content, stated) in ways.items():
        found = open_checkpoint(save(file.with_name("y.safetensors"), content, stated))
        assert found.quantized.keys() == wanted.quantized.keys(), way
        assert found.tensors.keys() == wanted.tensors.keys(), way
        assert found.quantization == "fp8"
        assert all(
            torch.equal(found.tensors[key].view().view(torch.uint8), entry.view().view(torch.uint8))
            for key, entry in wanted.tensors.items()
            if entry.shape
        ), way


def test_float8_without_scales_is_taken_as_it_is(plain, file):
    checkpoint = open_checkpoint(save(file, {name: tensor.to(FP8) for name, tensor in plain.items()}))
    model = load_expert(checkpoint, dtype=torch.float32)
    assert torch.equal(model.get_parameter(WEIGHT).decode(torch.float32), plain[WEIGHT].to(FP8).float())
    assert torch.equal(model.get_parameter(f"{LAYER}.bias"), plain[f"{LAYER}.bias"].to(FP8).float())


@pytest.mark.parametrize(("dtype", "arithmetic"), [(FP8, "fp8"), (INT8, "int8")])
def test_8_bit_arithmetic_takes_the_stored_values(plain, file, dtype, arithmetic):
    model = load_expert(in_header(file, plain, dtype), arithmetic=arithmetic)
    weight = model.get_parameter(WEIGHT)
    made = weight.recode(DTYPES[arithmetic])
    assert made.values.data_ptr() == weight.data_ptr()
    assert torch.equal(made.scales, weight.scale.expand(len(weight), 1))
    other = weight.recode(DTYPES["int8" if arithmetic == "fp8" else "fp8"])
    assert relative_rms(other.values.float() * other.scales, weight.decode(torch.float32)) < 0.03


def test_streamed_blocks_loras_and_8_bits_take_it(plain, file, check_uses):
    check_uses(in_header(file, plain))


def test_decoded_weights_may_stay(plain, file):
    model = load_expert(in_header(file, plain), decoded_blocks=1)
    kept, other = (model.get_parameter(f"blocks.{block}.ffn.0.weight") for block in (0, 1))
    assert kept.decode(torch.bfloat16) is kept.decode(torch.bfloat16)
    assert other.decode(torch.bfloat16) is not other.decode(torch.bfloat16)
    assert kept.recode(FP8).values.data_ptr() == kept.data_ptr()


def test_a_scale_that_stands_twice_is_one(plain, file):
    tensors, header = quantized(plain, FP8)
    tensors[SCALE.replace("weight_scale", "scale_weight")] = tensors[SCALE].clone()
    assert WEIGHT in open_checkpoint(save(file, tensors)).quantized


def test_scales_of_rows_may_lack_the_second_size(plain, file):
    scale, names = in_8_bits(plain[WEIGHT], INT8, rows=True)[1], [WEIGHT]
    wanted, found = (
        state_tensors(open_checkpoint(in_header(file, plain, INT8, True, **{SCALE: each})), torch.float32, names=names)
        for each in (scale, scale.view(-1))
    )
    assert torch.equal(wanted[WEIGHT].dequantize(), found[WEIGHT].dequantize())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({SCALE: torch.ones(3)}, "its scale is torch.float32 [3], expected one float or [128, 1] floats"),
        ({SCALE: torch.ones((), dtype=torch.int32)}, "its scale is torch.int32 []"),
        ({SCALE: torch.tensor(900.0)}, "its scale is 900, it seems 1 / scale"),
        (
            {SCALE.replace("weight_scale", "scale_weight"): torch.tensor(2.0)},
            "two scales, weight_scale and scale_weight",
        ),
        ({WEIGHT: None}, "the weight itself is missing"),
        ({WEIGHT: torch.zeros(128, 64)}, "torch.float32 [128, 64] with a scale, expected a matrix of float8_e4m3fn"),
        (
            {f"{LAYER}.comfy_quant": as_tensor({"format": "nvfp4"})},
            "torch.float8_e4m3fn [128, 64] with a scale, expected a matrix of nvfp4",
        ),
        (
            {f"{LAYER}.comfy_quant": as_tensor({"format": "convrot_w4a4"})},
            "the format is 'convrot_w4a4', expected one of float8_e4m3fn",
        ),
        ({f"{LAYER}.comfy_quant": as_tensor([1])}, "comfy_quant is no JSON object"),
        ({f"{LAYER}.comfy_quant": torch.zeros(4, dtype=torch.uint8)}, "comfy_quant is not JSON"),
        ({SCALE: torch.tensor(float("nan"))}, "NaN or infinity"),
    ],
)
def test_what_cannot_be_read_is_named(plain, file, changes, words):
    refused(in_header(file, plain, **changes), LAYER, words)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({LAYER: {"format": "int8_tensorwise"}}, "int8 without its weight_scale"),
        (None, "int8 without a bitsandbytes quant_state or ComfyUI's weight_scale"),
    ],
)
def test_int8_without_its_scale_is_named(plain, file, stated, words):
    refused(save(file, plain | {WEIGHT: plain[WEIGHT].to(INT8)}, stated), LAYER, words)


def test_int8_of_which_nothing_is_said_is_named(plain, file):
    values, scale = in_8_bits(plain[WEIGHT], INT8)
    refused(
        save(file, plain | {WEIGHT: values, SCALE: scale}), "int8 without the format that ComfyUI writes next to it"
    )


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"layers": 5}', '{"layers": {"x": {}}}', '{"layers": {"x": {"format": []}}}']
)
def test_metadata_that_is_damaged_is_an_error_or_nothing(plain, file, text):
    save_file(plain, file, {"_quantization_metadata": text})
    if "5" in text:
        assert open_checkpoint(file).quantization is None
    else:
        refused(file, "_quantization_metadata" if len(text) < 3 else "x.weight: ")


def test_a_nunchaku_file_is_named(plain, file):
    refused(
        save(file, plain | {f"{LAYER}.qweight": plain[WEIGHT].to(INT8), f"{LAYER}.wscales": torch.ones(4)}),
        "a nunchaku (SVDQuant) quantization",
    )


# Files that are written


@pytest.fixture
def source(golden, tmp_path):
    folder = tmp_path / "lingbot-world-base-cam"
    for role in ("high", "low"):
        expert = folder / f"{role}_noise_model"
        expert.mkdir(parents=True)
        shutil.copy(golden / f"model/{role}_noise_model_fp32.safetensors", expert / "model.safetensors")
        shutil.copy(golden / "model/config.json", expert)
    return folder


def test_quantize_writes_files_with_comfyuis_metadata(source, plain, tmp_path, golden):
    run(source, tmp_path / "fp8", format="comfy-fp8", keep=("head.head",))
    folder = tmp_path / "fp8/high_noise_model_fp8"
    with safe_open(folder / "model.safetensors", "pt") as file:
        layers = json.loads(file.metadata()["_quantization_metadata"])["layers"]
    checkpoint = open_checkpoint(folder)
    assert layers == {name.removesuffix(".weight"): {"format": "float8_e4m3fn"} for name in checkpoint.quantized}
    assert (checkpoint.quantization, len(layers), checkpoint.source) == ("fp8", 50, "high_noise_model")
    for name, weight in checkpoint.quantized.items():
        values, scale = (entry.view() for entry in weight.entries)
        assert scale.log2() == scale.log2().round()
        assert values.float().abs().max() >= 224
        assert relative_rms(values.float() * scale, plain[name]) < 0.03
    found = verify(tmp_path / "fp8", silent)
    assert [item.kind for item in found] == [
        f"{role}-noise LingBot-World expert, fp8, made from {role}_noise_model" for role in ("high", "low")
    ]
    assert all(item.checked == item.tensors for item in found)


def test_scales_of_2_to_a_power_decode_to_the_same_number_in_other_dtypes():
    values, scale = scaled.encode(torch.randn(300, 64, generator=torch.Generator().manual_seed(0)).bfloat16() / 40)
    parameter = parameters.ScaledParameter.of(values, scale)
    exact = parameter.decode(torch.float32)
    assert all(torch.equal(parameter.decode(dtype).float(), exact) for dtype in (torch.bfloat16, torch.float16))


@pytest.mark.parametrize("weight", [torch.zeros(4, 64), torch.full((4, 64), 448.0), torch.full((4, 64), 3e38)])
def test_weights_at_the_ends_of_the_range_stay_finite(weight):
    values, scale = scaled.encode(weight)
    assert (
        torch.equal(
            parameters.ScaledParameter.of(values, scale).decode(torch.float32) / weight.abs().clamp_min(1),
            weight / weight.abs().clamp_min(1),
        )
        or weight[0, 0] > 1e38
    )
    assert values.float().isfinite().all()


def test_the_command_writes_it_and_says_what_does_not_go_together(source, golden, tmp_path, capsys):
    model = str(source / "high_noise_model")
    assert main(["quantize", model, str(tmp_path / "made"), "--format", "comfy-fp8", "--device", "cpu"]) == 0
    assert "51 weights in 8 bits, relative error 0.0" in capsys.readouterr().out
    for arguments in (["--search"], ["--blocksize", "128"]):
        assert main(["quantize", model, str(tmp_path / "not"), "--format", "comfy-fp8", *arguments]) == 2
        assert "--format is comfy-fp8" in capsys.readouterr().err
    with pytest.raises(InputError, match="neither `lora`, `keep` nor `format`"):
        run(golden / "t5/t5_encoder_fp32.pth", tmp_path / "t5", format="comfy-fp8")
