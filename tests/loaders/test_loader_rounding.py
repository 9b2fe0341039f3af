"""Weights of more bits than the model computes in: rounded on their way, in no memory as the file has them."""

from dataclasses import replace

import pytest
import torch
from lingbot_world.loaders import load_expert, open_checkpoint, state_tensors
from lingbot_world.loaders.chunks import buffer_bytes, piece_chunks, ranges_in, split_into_chunks, tensor_at
from lingbot_world.loaders.offload import weight_bytes
from lingbot_world.loaders.uploader import ChunkReader, UploadSettings
from lingbot_world.toy.experts import write_expert
from lingbot_world.weights.tensors import read_safetensors
from model_cases import SMALL, random_inputs, random_state
from safetensors.torch import save_file

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = replace(SMALL, num_layers=2)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def state():
    return random_state(CONFIG)


@pytest.fixture(scope="module")
def file(state, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fp32")
    (folder / "config.json").write_text('{"text_len": 24, "num_heads": 2}')
    write_expert(folder / "model.safetensors", CONFIG, state.items(), quant_type=None, dtype=torch.float32)
    return folder / "model.safetensors"


def carried(entries, size, parts=1):
    """The entries' tensors, brought into one buffer in chunks of at most `size` bytes, or in pieces."""
    buffer = torch.zeros(-(-buffer_bytes(entries) // (parts * 256)) * parts * 256, dtype=torch.uint8)
    targets, reader = ranges_in(buffer, entries), ChunkReader(torch.device("cpu"), UploadSettings(chunk_bytes=size))
    length = len(buffer) // parts
    for part in range(parts):
        piece = buffer[part * length : (part + 1) * length]
        chunks = list(split_into_chunks(entries, targets, size))
        for chunk in chunks if parts == 1 else piece_chunks(chunks, part * length, piece):
            assert chunk.stop - chunk.start <= size
            reader.copy_chunk(chunk)
    reader.close()
    return {entry.name: tensor_at(targets[entry.name], entry) for entry in entries}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("size", "parts"), [(1 << 20, 1), (4096, 1), (1001, 1), (4096, 3)])
def test_chunks_of_any_size_round_to_the_same_bits(tmp_path, dtype, size, parts):
    torch.manual_seed(1)
    kinds = {
        "a": (torch.float32, 999),
        "b": (torch.bfloat16, 7),
        "c": (torch.float32, 3),
        "d": (torch.float64, 500),
        "e": (torch.uint8, 5),
        "f": (torch.float32, 2000),
    }
    tensors = {name: torch.rand(count).mul(9).to(kind) for name, (kind, count) in kinds.items()}
    save_file(tensors, tmp_path / "x.safetensors")
    entries = [entry.rounded(dtype) for entry in read_safetensors(tmp_path / "x.safetensors").values()]
    found = carried(entries, size, parts)
    for name, tensor in tensors.items():
        expected = tensor if name in "be" else tensor.to(dtype)
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected), name


def test_rounding_takes_the_memory_of_the_rounded_model(file, state):
    checkpoint = open_checkpoint(file)
    rounded = checkpoint.rounded(torch.bfloat16)
    assert 2 * rounded.nbytes == checkpoint.nbytes
    assert weight_bytes(rounded, 0) < 0.52 * weight_bytes(checkpoint, 0)
    assert checkpoint.rounded(torch.float32).tensors == checkpoint.tensors
    sent = state_tensors(rounded, torch.bfloat16, copy=True)
    buffers = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in sent.values()}
    assert sum(buffers.values()) < 1.02 * rounded.nbytes + 256 * len(sent)
    assert all(torch.equal(sent[name], tensor.to(torch.bfloat16)) for name, tensor in state.items())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("resident", [None, 0, 1])
def test_a_model_has_the_same_bits_wherever_it_was_rounded(file, state, resident, device, tmp_path):
    (tmp_path / "config.json").write_text('{"text_len": 24, "num_heads": 2}')
    write_expert(tmp_path / "model.safetensors", CONFIG, state.items(), quant_type=None, dtype=torch.bfloat16)
    inputs = {name: tensor.to(device) for name, tensor in random_inputs(CONFIG, 1, (2, 4, 4)).items()}
    outputs = [
        load_expert(path, device, torch.bfloat16, resident_blocks=resident, copy=True)(**inputs)
        for path in (file, tmp_path)
    ]
    assert torch.equal(*outputs)
