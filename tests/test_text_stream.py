"""Blocks of the text encoder on their way to a GPU; here the copies are ordinary ones, the threads are the same."""

import threading
import time

import pytest
import torch
from lingbot_world.loaders import stream as reading
from lingbot_world.text import stream

CPU = torch.device("cpu")
DTYPES = (torch.bfloat16, torch.float32, torch.float8_e4m3fn)


@pytest.fixture
def blocks(monkeypatch):
    """Blocks of mapped tensors of several dtypes and shapes, and reads that take their time."""
    monkeypatch.setattr(stream, "SETTINGS", reading.StreamSettings(threads=3, buffers=1, chunk_bytes=1000))
    read = reading.FileReader.read

    def late(reader, chunk, buffer):
        time.sleep(0.001)
        read(reader, chunk, buffer)

    monkeypatch.setattr(reading.FileReader, "read", late)
    generator = torch.Generator().manual_seed(0)
    return [
        {f"{dtype}": torch.randn(21, 31, generator=generator).to(dtype) for dtype in DTYPES}
        | {"turned": torch.randn(7, 5, generator=generator).t(), "scalar": torch.randn((), generator=generator)}
        for _ in range(4)
    ]


def bytes_of(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_every_block_arrives_whole_and_in_turn(mode, blocks):
    before = threading.active_count()
    with mode():
        # as if opened in this mode
        blocks = [{key: tensor.clone() for key, tensor in block.items()} for block in blocks]
        for arrived, block in zip(stream.upload_blocks(blocks, CPU), blocks, strict=True):
            assert arrived.keys() == block.keys()
            for key, tensor in block.items():
                assert (arrived[key].dtype, arrived[key].shape) == (tensor.dtype, tensor.shape)
                assert bytes_of(arrived[key]) == bytes_of(tensor)
                assert arrived[key].data_ptr() != tensor.data_ptr()
    assert threading.active_count() == before


def test_a_stream_that_is_left_early_ends_its_threads(blocks):
    before = threading.active_count()
    arriving = stream.upload_blocks(blocks, CPU)
    next(arriving)
    assert threading.active_count() > before
    arriving.close()
    assert threading.active_count() == before


def test_the_next_block_comes_while_one_is_in_use(blocks, monkeypatch):
    begun, start = [], stream._start

    def spy(uploader, block, device):
        begun.append(block)
        return start(uploader, block, device)

    monkeypatch.setattr(stream, "_start", spy)
    for index, _ in enumerate(stream.upload_blocks(blocks, CPU)):
        assert len(begun) == min(index + 2, len(blocks))


def test_on_the_cpu_blocks_are_the_mapped_tensors(blocks):
    for arrived, block in zip(stream.stream_blocks(blocks, CPU), blocks, strict=True):
        assert all(arrived[key] is block[key] for key in block)
