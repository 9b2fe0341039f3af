"""Damaged files of weights in fewer bits end in the pack's own error or load; see fuzz_cases.py."""

import shutil
from itertools import islice

import pytest
import torch
from fuzz_cases import fuzz
from lingbot_world.loaders import open_checkpoint, state_tensors
from lingbot_world.text.weights import open_weights
from safetensors.torch import load_file, save_file
from test_comfy_formats import matrices, quantized, stored

gguf = pytest.importorskip("gguf")
from gguf_cases import llama_names, write  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def load(path):
    """Decode every tenth weight."""
    checkpoint = open_checkpoint(path)
    names = list(islice(checkpoint.shapes, 0, None, 10))
    for parameter in state_tensors(checkpoint, torch.float32, names=names, quantized=False).values():
        if hasattr(parameter, "decode"):
            parameter.decode(torch.float32)


def embed(path):
    open_weights(path).embed(torch.tensor([0, 5, 290]))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_experts_in_blocks(golden, tmp_path, kind):
    shutil.copy(golden / "model/config.json", tmp_path)
    file = write(tmp_path / "x.gguf", load_file(golden / "model/high_noise_model_fp32.safetensors"), kind)
    head = gguf.GGUFReader(file).data_offset
    fuzz(lambda: load(file), file.read_bytes(), file, head)


def test_text_encoders_in_blocks(golden, tmp_path):
    tensors = llama_names(load_file(golden / "t5/t5_encoder_fp32.safetensors"))
    fields = {"tokenizer.ggml.tokens": [f"word{number}" for number in range(100)]}
    file = write(tmp_path / "umt5.gguf", tensors, arch="t5encoder", fields=fields)
    head = gguf.GGUFReader(file).data_offset
    fuzz(lambda: embed(file), file.read_bytes(), file, head)


@pytest.mark.parametrize("form", ["int8_convrot", "nvfp4", "mxfp8"])
def test_experts_in_comfyuis_formats(golden, tmp_path, form):
    shutil.copy(golden / "model/config.json", tmp_path)
    file, plain = tmp_path / "x.safetensors", load_file(golden / "model/high_noise_model_fp32.safetensors")
    save_file(stored(quantized(plain, form)[0]), file)
    content = file.read_bytes()
    fuzz(lambda: load(file), content, file, int.from_bytes(content[:8], "little"))


def test_text_encoders_in_comfyuis_formats(golden, tmp_path):
    tensors = load_file(golden / "t5/t5_encoder_fp32.safetensors")
    tensors["token_embedding.weight"] = torch.nn.functional.pad(tensors["token_embedding.weight"], (0, 0, 0, 20))
    file = tmp_path / "t5.safetensors"
    save_file(stored(quantized(tensors, "int8_convrot", matrices)[0]), file)
    content = file.read_bytes()
    fuzz(lambda: embed(file), content, file, int.from_bytes(content[:8], "little"))
