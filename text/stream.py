"""Blocks of weights to the device, one ahead of the one in use."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ..loaders.stream import Chunk, StreamSettings
from ..loaders.upload import Upload, Uploader

SETTINGS = StreamSettings(threads=8, buffers=1, chunk_bytes=8 << 20)
"""The system copies a mapped page at a few GB/s; several threads together reach several times that."""

Block = dict[str, Tensor]


def stream_blocks(blocks: Iterable[Block], device: torch.device) -> Iterator[Block]:
    """Yields each block on `device`: on a CUDA device through pinned buffers, on the CPU the mapped tensors themselves,
    without a copy."""
    if device.type == "cuda":
        yield from upload_blocks(blocks, device)
        return
    for block in blocks:
        yield {key: tensor.to(device) for key, tensor in block.items()}


def upload_blocks(blocks: Iterable[Block], device: torch.device) -> Iterator[Block]:
    """Copies of the blocks on `device`; the next one comes while one is in use."""
    with Uploader(device, SETTINGS) as uploader:
        blocks = iter(blocks)
        ahead = _start(uploader, next(blocks), device)
        for block in blocks:
            current, ahead = ahead, _start(uploader, block, device)
            yield _arrived(*current)
            del current
        yield _arrived(*ahead)


def _start(uploader: Uploader, block: Block, device: torch.device) -> tuple[Block, Upload]:
    with torch.inference_mode(False):  # other threads could not write to an inference tensor
        target = {key: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for key, tensor in block.items()}
        chunks = [chunk for key in block for chunk in _chunks(block[key], target[key])]
    return target, uploader.start(chunks)


def _arrived(block: Block, upload: Upload) -> Block:
    upload.wait()
    return block


def _chunks(source: Tensor, target: Tensor) -> Iterator[Chunk]:
    source, target = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (source, target))
    for start in range(0, len(source), SETTINGS.chunk_bytes):
        piece = target[start : start + SETTINGS.chunk_bytes]
        yield Chunk(source, start, start + len(piece), [(0, piece)])
