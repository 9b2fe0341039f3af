"""Prompts through a umt5 encoder that never is in memory as a whole."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from ..errors import TextError
from .memory import return_freed_memory
from .stream import stream_blocks
from .tokenizer import Tokenizer, load_tokenizer
from .umt5 import encoder_block, position_buckets, rms_norm
from .weights import UMT5Weights, open_weights

Progress = Callable[[int, int], None]


def encode(
    prompts: str | Sequence[str],
    checkpoint: str | Path,
    tokenizer: Tokenizer | str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    progress: Progress | None = None,
) -> list[Tensor]:
    """Each prompt's embedding, float32 [tokens, dim] on `device`, tokens <= 512, its eos included, no padding.

    One block of `checkpoint` (file or folder) is in memory at a time and serves all prompts; nothing stays behind.
    Matrix products run in `dtype`. `progress(done, total)` counts blocks; what it raises stops the encoding.
    TextError for a checkpoint or tokenizer that cannot be used, or that do not belong together.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    try:
        return encode_ids(*_open(prompts, checkpoint, tokenizer), device, dtype, progress)
    finally:
        return_freed_memory()


def _open(
    prompts: Sequence[str], checkpoint: str | Path, tokenizer: Tokenizer | str | Path
) -> tuple[list[list[int]], UMT5Weights]:
    """Token ids of each prompt, and the mapped weights that they fit."""
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    weights = open_weights(checkpoint)
    check_vocabulary(tokenizer, weights, checkpoint)
    return [tokenizer.encode(prompt) for prompt in prompts], weights


def check_vocabulary(tokenizer: Tokenizer, weights: UMT5Weights, checkpoint: str | Path) -> None:
    """TextError when the tokenizer can make ids that the embedding has no row for."""
    if tokenizer.vocab_size > weights.config.vocab_size:
        raise TextError(
            f"tokenizer {tokenizer.source} has {tokenizer.vocab_size} tokens, the embedding of {checkpoint} only "
            f"{weights.config.vocab_size} rows: they do not belong together. Use the tokenizer that came with the file."
        )


@torch.no_grad()
def encode_ids(
    ids: Sequence[Sequence[int]],
    weights: UMT5Weights,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    progress: Progress | None = None,
) -> list[Tensor]:
    """`encode` from token ids on; every row of `ids` has its own length."""
    if not ids:
        return []
    device, layers = torch.device(device), weights.config.num_layers
    lengths = [len(row) for row in ids]
    buckets = [position_buckets(length, weights.config.buckets).to(device) for length in lengths]
    x = weights.embed(torch.tensor([token for row in ids for token in row])).to(device)
    with closing(stream_blocks(map(weights.block, range(layers)), device)) as blocks:
        for done in range(1, layers + 1):
            x = encoder_block(x, next(blocks), lengths, buckets, dtype)
            if progress is not None:
                progress(done, layers)
    return list(rms_norm(x, weights.tensors["norm.weight"].to(device)).split(lengths))
