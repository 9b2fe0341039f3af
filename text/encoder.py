"""A umt5 encoder for prompts that holds at most two blocks in memory."""

import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from ..errors import TextError
from ..loaders.uploader import Uploader, UploadSettings
from ..model.host_memory import give_back_memory
from ..options import Progress
from .tokenizer import Tokenizer, load_tokenizer
from .umt5 import bucket_of, encoder_block, rms_norm
from .weights import UMT5Weights, open_weights

log = logging.getLogger(__name__)

SPARE_ROWS = 1024
"""The maximum number of rows of an embedding table beyond the tokenizer's tokens. umt5-xxl has 384."""
SETTINGS = UploadSettings(threads=min(8, os.cpu_count() or 1), buffers=1, chunk_bytes=8 << 20, sleep=True)


def encode(
    prompts: str | Sequence[str],
    encoder: UMT5Weights | str | Path,
    tokenizer: Tokenizer | str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    progress: Progress | None = None,
    warn: Callable[[str], None] = log.warning,
) -> list[Tensor]:
    """Return each prompt's embedding, float32 [tokens, dim] on `device`, without padding.

    encoder, tokenizer: results of `open_weights` and `load_tokenizer`, or their paths.
    dtype: the dtype of the matrix products.
    progress: called as progress(done, total) after each block.
    warn: receives a message for each truncated prompt.

    Raise CheckpointError or TextError if encoder or tokenizer cannot be used or do not match.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    try:
        tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
        weights = encoder if isinstance(encoder, UMT5Weights) else open_weights(encoder)
        check_vocabulary(tokenizer, weights)
        return encode_ids([tokenizer.encode(prompt, warn) for prompt in prompts], weights, device, dtype, progress)
    finally:
        give_back_memory()  # a tokenizer's vocabulary leaves 250 MB


def check_vocabulary(tokenizer: Tokenizer, weights: UMT5Weights) -> None:
    """Raise TextError unless the embedding table has a row for each token, and at most SPARE_ROWS more."""
    rows = weights.config.vocab_size
    if not 0 <= rows - tokenizer.vocab_size <= SPARE_ROWS:
        raise TextError(
            f"tokenizer {tokenizer.source} has {tokenizer.vocab_size} tokens, the embedding of {weights.path} has "
            f"{rows} rows: they do not belong together. Use the tokenizer that came with the file."
        )


@torch.no_grad()
def encode_ids(
    ids: Sequence[Sequence[int]],
    weights: UMT5Weights,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    progress: Progress | None = None,
) -> list[Tensor]:
    """Return the embeddings of token ids as `encode` does. Raise TextError for an embedding with NaN or infinity."""
    if not ids:
        return []
    device, layers = torch.device(device), weights.config.num_layers
    positions = [torch.arange(len(row)) for row in ids]
    buckets = [bucket_of(each[None, :] - each[:, None], weights.config.buckets).to(device) for each in positions]
    prompts = [weights.embed(torch.tensor(row)).to(device) for row in ids]
    mapped = (
        weights.parameters({entry.name: entry.view() for entry in weights.block(index)}, device)
        for index in range(layers)
    )
    with closing(mapped if device.type == "cpu" else uploaded_blocks(weights, device)) as blocks:
        for done in range(1, layers + 1):
            prompts = encoder_block(prompts, next(blocks), buckets, dtype)
            if progress is not None:
                progress(done, layers)
    norm = weights.tensors["norm.weight"].view().to(device)
    embeddings = [rms_norm(x, norm) for x in prompts]
    if not all(each.isfinite().all() for each in embeddings):
        raise TextError(
            f"{weights.path}: the embedding of a prompt is NaN or infinity, expected finite numbers; the file is "
            "corrupt, download it again"
        )
    return embeddings


def uploaded_blocks(weights: UMT5Weights, device: torch.device) -> Generator[dict[str, Tensor], None, None]:
    """Yield each encoder block's tensors on `device`, by name, while the next block is copied."""
    with Uploader(device, SETTINGS) as uploader:
        ahead = uploader.upload(weights.block(0))
        for index in range(1, weights.config.num_layers + 1):
            tensors, upload = ahead
            if index < weights.config.num_layers:
                ahead = uploader.upload(weights.block(index))
            upload.wait()
            parameters = weights.parameters(tensors, device)
            del tensors
            yield parameters
            del parameters
