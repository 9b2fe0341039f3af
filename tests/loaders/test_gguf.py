"""GGUF files: decoded to the library's bits, kept in their blocks, streamed, changed by LoRAs, refused in a line."""

import json
import shutil
import struct
import sys

import pytest
import torch
from block_cases import blocks
from checkpoint_cases import refused
from lingbot_world.errors import CheckpointError, DependencyError
from lingbot_world.headless.command.cli import main
from lingbot_world.loaders import find_package, load_expert, open_checkpoint, state_tensors
from lingbot_world.loaders.package import open_experts
from lingbot_world.model.layers.operations import Linear
from lingbot_world.model.quantized import ggml
from lingbot_world.model.quantized.parameters import BlockParameter
from lingbot_world.options import PerExpert
from lingbot_world.quantize import verify
from lingbot_world.text import encode
from lingbot_world.text.weights import open_weights, wan_key
from lingbot_world.toy.weights import EXPERT, expert_tensors
from lingbot_world.weights import gguf_file
from quantize_cases import run, silent
from safetensors.torch import load_file, save_file
from test_model_accuracy import relative_rms

gguf = pytest.importorskip("gguf")
from gguf_cases import KINDS, decoded, llama_names, write  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
LAYER = "blocks.1.ffn.0"
EVERY = pytest.mark.parametrize("kind", ggml.BLOCKS)


@EVERY
def test_blocks_are_decoded_to_the_librarys_bits(kind, monkeypatch):
    rows, width = 24, 3 * ggml.BLOCKS[kind].values
    packed = torch.from_numpy(blocks(kind, rows * width))
    type_ = getattr(gguf.GGMLQuantizationType, kind)
    assert gguf.GGML_QUANT_SIZES[type_] == tuple(ggml.BLOCKS[kind])
    want = torch.from_numpy(gguf.dequantize(packed.numpy().reshape(rows, -1), type_))
    for at_a_time in (1 << 22, 256):
        monkeypatch.setattr(ggml, "_DECODED_AT_A_TIME", at_a_time)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert torch.equal(ggml.decode(packed, kind, (rows, width), dtype), want.to(dtype))
    some = torch.tensor([3, 0, 3])
    assert torch.equal(ggml.decode_rows(packed, kind, (rows, width), some), want[some])
    assert torch.equal(ggml.decode_rows(packed, kind, (width, rows), some), want.view(width, rows)[some])
    assert want.abs().max() > 1e-4


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_modulations_may_be_in_blocks_and_a_block_that_is_not_finite_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"num_heads": 2}')
    tensors = {name: tensor[0] if name.endswith("modulation") else tensor for name, tensor in expert_tensors(1)}
    checkpoint = open_checkpoint(write(tmp_path / "x.gguf", tensors))
    assert checkpoint.shapes == EXPERT.parameter_shapes()
    assert {"head.modulation", "blocks.0.modulation"} < checkpoint.quantized.keys()
    state = state_tensors(checkpoint, torch.float32, quantized=False)
    assert relative_rms(state["blocks.0.modulation"][0], tensors["blocks.0.modulation"]) < 0.01
    write(tmp_path / "x.gguf", tensors | {f"{LAYER}.weight": tensors[f"{LAYER}.weight"] * torch.nan})
    with pytest.raises(CheckpointError, match=rf"x.gguf: NaN or infinity in 1 tensors \({LAYER}.weight\)"):
        verify(tmp_path / "x.gguf", silent)


@pytest.mark.parametrize("kind", KINDS)
def test_an_expert_of_every_type_is_the_librarys(plain, folder, kind):
    checkpoint = open_checkpoint(write(folder / "x.gguf", plain, kind))
    want, model = decoded(folder / "x.gguf"), load_expert(checkpoint, dtype=torch.float32)
    assert checkpoint.quantization == (kind if kind in ggml.BLOCKS else None)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == want.keys() == plain.keys()
    for name, parameter in parameters.items():
        got = parameter.decode(torch.float32) if hasattr(parameter, "decode") else parameter
        assert torch.equal(got, want[name].view(plain[name].shape)), name


def test_weights_stay_in_their_blocks_and_in_their_file(plain, folder):
    checkpoint = open_checkpoint(write(folder / "x.gguf", plain, "Q4_K"))
    model = load_expert(checkpoint)
    assert len(checkpoint.quantized) == 51
    for name, weight in checkpoint.quantized.items():
        parameter = model.get_parameter(name)
        assert isinstance(parameter, BlockParameter)
        assert parameter.data_ptr() == weight.packed.view().data_ptr()
        assert weight.packed.nbytes == plain[name].numel() * 144 // 256


@pytest.mark.parametrize("kind", ["Q5_1", "Q8_0"])
def test_streamed_blocks_loras_and_8_bits_take_it(plain, folder, kind, check_uses):
    check_uses(write(folder / "x.gguf", plain, kind))


def test_comfyuis_tensor_is_the_same_weight(plain, folder):
    checkpoint = open_checkpoint(write(folder / "x.gguf", plain, "Q6_K"))
    want, state = decoded(folder / "x.gguf"), state_tensors(checkpoint, torch.bfloat16)
    for name in checkpoint.quantized:
        tensor = state[name]
        assert (tensor.shape, tensor.dtype) == (plain[name].shape, torch.bfloat16)
        assert tensor.data_ptr() == checkpoint.quantized[name].packed.view().data_ptr()
        assert torch.equal(tensor.to(torch.float32).dequantize(), want[name].view(plain[name].shape))
        x = torch.randn(3, tensor.shape[1])
        for moved in (tensor, tensor.to("cpu"), tensor.clone()):
            assert torch.equal(torch.nn.functional.linear(x, moved), x @ want[name].view(plain[name].shape).t())


def test_modulations_without_their_first_size_prefixes_and_packed_convolutions(plain, folder):
    """As other writers have them: GGML drops a last size of 1, and some files have ComfyUI's prefix."""
    squeezed = {name: tensor[0] if name.endswith("modulation") else tensor for name, tensor in plain.items()}
    prefix = "model.diffusion_model."
    for file in (write(folder / "a.gguf", squeezed, "F16"), write(folder / "b.gguf", plain, "F16", prefix=prefix)):
        model = load_expert(file, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, plain[name].half().float() if plain[name].ndim == 2 else plain[name]), name
    patch = "patch_embedding.weight"
    q8 = gguf.GGMLQuantizationType.Q8_0
    tensors = {name: (tensor.numpy(), None) for name, tensor in plain.items()}
    tensors[patch] = gguf.quantize(plain[patch].reshape(-1, 256).numpy(), q8), q8
    write_raw(folder / "c.gguf", tensors, {patch: list(plain[patch].shape)})
    for host in (False, True):
        found = state_tensors(open_checkpoint(folder / "c.gguf"), torch.float32, quantized=host)[patch]
        assert found.shape == plain[patch].shape
        assert relative_rms(found, plain[patch]) < 0.01


def test_a_pair_of_experts_and_a_causal_file_are_a_package(golden, plain, folder, capsys):
    low = load_file(golden / "model/low_noise_model_fp32.safetensors")
    pair, causal = folder / "pair", folder / "lingbot-world-v2-14b-causal-fast-GGUF"
    for made in (pair, causal):
        made.mkdir()
        shutil.copy(folder / "config.json", made)
    write(pair / "lingbot_high_noise-Q8_0.gguf", plain)
    write(pair / "lingbot_low_noise-Q8_0.gguf", low)
    experts = find_package(pair).experts
    assert experts == PerExpert(pair / "lingbot_high_noise-Q8_0.gguf", pair / "lingbot_low_noise-Q8_0.gguf")
    assert open_experts(experts).low.quantization == "Q8_0"
    stated = json.loads((causal / "config.json").read_text()) | {"_class_name": "WanModelFast"}
    (causal / "config.json").write_text(json.dumps(stated))
    file = write(causal / "lingbot-world-v2-14b-causal-fast-Q4_K.gguf", plain, "Q4_K")
    assert find_package(file).causal == file
    assert find_package(causal).causal == causal
    assert open_checkpoint(causal).release.name == "LingBot-World 2.0"
    for path in (file, causal):
        assert main(["inspect", str(path)]) == 0
        assert "quantization Q4_K" in capsys.readouterr().out


def test_a_text_encoder_under_llama_cpps_names(golden, tmp_path):
    tensors = load_file(golden / "t5/t5_encoder_fp32.safetensors")
    prompts = ["A castle in the morning mist."]
    for kind in ("F16", "Q8_0", "Q4_K"):
        file = write(tmp_path / f"umt5-{kind}.gguf", llama_names(tensors), kind, arch="t5encoder")
        wanted = {wan_key(name): tensor for name, tensor in decoded(file).items()}
        save_file(
            {name: wanted[name].view(tensor.shape) for name, tensor in tensors.items()},
            tmp_path / "decoded.safetensors",
        )
        got, want = (
            encode(prompts, path, golden / "t5/tokenizer", dtype=torch.float32)[0]
            for path in (file, tmp_path / "decoded.safetensors")
        )
        assert torch.equal(got, want)
        assert open_weights(file).quantization == (None if kind == "F16" else kind)


def test_quantize_and_verify_take_it(plain, golden, folder, capsys):
    shutil.copytree(golden / "model", folder / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    file = write(folder / "model/x.gguf", plain, "Q8_0")
    run(file, folder / "made")
    want = decoded(file)
    made = load_expert(folder / "made", dtype=torch.float32)
    for name, layer in made.named_modules():
        if isinstance(layer, Linear):
            weight = want[f"{name}.weight"].view(layer.weight.weight_shape)
            assert relative_rms(layer.weight.decode(torch.float32), weight) < 0.1
    assert verify(file, silent)[0].kind == "LingBot-World expert, Q8_0"
    encoder = write(
        folder / "umt5.gguf",
        llama_names(load_file(golden / "t5/t5_encoder_fp32.safetensors")),
        "Q8_0",
        arch="t5encoder",
    )
    assert verify(encoder, silent)[0].kind == "umt5 text encoder, Q8_0"
    run(encoder, folder / "t5")
    assert verify(folder / "t5", silent)[0].kind == "umt5 text encoder, nf4, made from " + folder.name


def rewritten(file, edit):
    content = bytearray(file.read_bytes())
    file.write_bytes(edit(content) or content)
    return file


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda content: content[:200], "truncated or corrupt"),
        (lambda content: content[:-2000], "past the end of the file"),
        (lambda content: content + bytes(32), "32 bytes after the last tensor"),
        (lambda content: content.__setitem__(slice(4, 8), struct.pack("<I", 9)), "version 9"),
        (lambda content: content.__setitem__(slice(4, 8), struct.pack(">I", 3)), "truncated or corrupt"),
        (lambda content: content.__setitem__(slice(8, 16), struct.pack("<Q", 1 << 50)), "expected at most"),
        (lambda content: content.__setitem__(slice(16, 24), struct.pack("<Q", 1 << 50)), "truncated or corrupt"),
        (lambda _content: b"GGUF\x03\0\0\0" + bytes(64), "no tensors"),
    ],
)
def test_damage_is_named(plain, folder, edit, words):
    refused(rewritten(write(folder / "x.gguf", plain), edit), "x.gguf", words)


def test_lists_of_any_length_are_passed_over(plain, folder):
    words = [f"word{number}" for number in range(100_000)]
    fields = {"tokenizer.ggml.tokens": words, "tokenizer.ggml.scores": [0.5] * len(words)}
    assert len(open_checkpoint(write(folder / "x.gguf", plain, fields=fields)).quantized) == 51
    rewritten(
        folder / "x.gguf",
        lambda content: content.replace(struct.pack("<IQ", 8, 100_000), struct.pack("<IQ", 8, 1 << 40)),
    )
    refused(folder / "x.gguf", "a list of 1,099,511,627,776 values")


def test_other_types_and_wrong_shapes_are_named(plain, folder):
    layer, rest = "blocks.0.ffn.0.weight", ("expected one of F64, F32, F16, BF16, Q4_0", "another GGUF file")
    bytes_, q8 = torch.zeros(4, 66, dtype=torch.uint8).numpy(), gguf.GGMLQuantizationType.Q8_0
    refused(
        write_raw(folder / "a.gguf", {layer: (bytes_, gguf.GGMLQuantizationType.IQ2_XXS)}), f"{layer} is IQ2_XXS", *rest
    )
    refused(
        write_raw(folder / "b.gguf", {layer: (bytes_[:, :34], q8)}, {layer: [4, 33]}), "of shape [4, 33], which do not"
    )
    refused(write_raw(folder / "c.gguf", {layer: (bytes_[:, :34], q8)}, {layer: [-4, -32]}), "which do not agree")
    file = write_raw(folder / "d.gguf", {layer: (bytes_[:, :34], q8), "x": (bytes_[:, :34], q8)})
    rewritten(file, lambda content: content.replace(struct.pack("<IQ", q8, 160), struct.pack("<IQ", q8, 0)))
    refused(file, "at byte", "overlaps the tensor before it")


def write_raw(file, tensors, shapes=()):
    """Tensors as they are, with the shapes that the header says they have."""
    writer = gguf.GGUFWriter(path=None, arch="wan")
    for name in shapes:
        writer.add_array(f"comfy.gguf.orig_shape.{name}", shapes[name])
    for name, (values, type_) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=type_)
    writer.write_header_to_file(path=file)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_without_the_library_it_says_what_to_install(plain, folder, monkeypatch):
    file = write(folder / "x.gguf", plain)
    gguf_file._reader_class.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(DependencyError, match="pip install --upgrade gguf"):
        open_checkpoint(file)
    monkeypatch.undo()
    gguf_file._reader_class.cache_clear()


def test_several_tiers_in_a_folder_have_to_be_told_apart(plain, folder):
    for kind in ("Q8_0", "Q4_0"):
        write(folder / f"x-{kind}.gguf", plain, kind)
    with pytest.raises(CheckpointError, match="several weight files"):
        open_checkpoint(folder)
