"""Blocks of the text encoder on their way to a GPU; here the copies are ordinary ones, the threads are the same."""

import threading
import time
from pathlib import Path

import pytest
import torch
from lingbot_world.loaders.uploader import ChunkReader, Uploader, UploadSettings
from lingbot_world.text import encoder
from lingbot_world.text.weights import UMT5Config, UMT5Weights, open_weights
from lingbot_world.weights.tensors import TensorEntry

CPU = torch.device("cpu")
BLOCKS = 4
DTYPES = (torch.bfloat16, torch.float32, torch.float8_e4m3fn)


@pytest.fixture
def slow(monkeypatch):
    """Small chunks, and reads that take their time."""
    monkeypatch.setattr(encoder, "SETTINGS", UploadSettings(threads=3, buffers=1, chunk_bytes=1000))
    read = ChunkReader.read

    def late(lane, chunk, buffer):
        time.sleep(0.001)
        read(lane, chunk, buffer)

    monkeypatch.setattr(ChunkReader, "read", late)


def mapped_weights():
    """Blocks of mapped tensors of several dtypes and shapes, as of a torch.save file."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for index in range(BLOCKS):
        block = {f"{dtype}": torch.randn(21, 31, generator=generator).to(dtype) for dtype in DTYPES}
        block["scalar"] = torch.randn((), generator=generator)
        tensors |= {f"blocks.{index}.{key}": tensor for key, tensor in block.items()}
    entries = {
        key: TensorEntry(key, Path("x.pth"), value.dtype, tuple(value.shape), value) for key, value in tensors.items()
    }
    return UMT5Weights(Path("x.pth"), UMT5Config(1, 1, 1, 1, 1, BLOCKS, 1), entries)


def bytes_of(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("source", ["mapped tensors", "t5_encoder_fp32.safetensors"])
def test_every_block_arrives_whole_and_in_turn(mode, source, slow, golden):
    before = threading.active_count()
    with mode():
        weights = mapped_weights() if source == "mapped tensors" else open_weights(golden / "t5" / source)
        blocks = list(encoder.uploaded_blocks(weights, CPU))
        assert len(blocks) == weights.config.num_layers
        for index, block in enumerate(blocks):
            wanted = {entry.name.removeprefix(f"blocks.{index}."): entry.view() for entry in weights.block(index)}
            assert block.keys() == wanted.keys()
            for key, tensor in wanted.items():
                assert (block[key].dtype, block[key].shape) == (tensor.dtype, tensor.shape)
                assert bytes_of(block[key]) == bytes_of(tensor)
                assert block[key].data_ptr() != tensor.data_ptr()
    assert threading.active_count() == before


def test_blocks_that_are_not_asked_for_are_given_up_with_their_threads(slow):
    before = threading.active_count()
    blocks = encoder.uploaded_blocks(mapped_weights(), CPU)
    next(blocks)
    assert threading.active_count() > before
    blocks.close()
    assert threading.active_count() == before


def test_the_next_block_comes_while_one_is_in_use(slow, monkeypatch):
    begun, upload = [], Uploader.upload
    monkeypatch.setattr(Uploader, "upload", lambda self, entries: begun.append(entries) or upload(self, entries))
    for index, _ in enumerate(encoder.uploaded_blocks(mapped_weights(), CPU)):
        assert len(begun) == min(index + 2, BLOCKS)
