"""The embeddings of the prompts that were encoded last, so that a prompt that stays is not encoded again."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

from torch import Tensor

from ..text.tokenizer import MAX_TOKENS
from .folders import fingerprint

KEPT = 8
"""Embeddings that are kept at most, in host memory: 16 KB a token, so 8 MB each at most."""

_kept: OrderedDict[tuple[str, str], Tensor] = OrderedDict()


def embeddings(
    files: Iterable[Path], prompts: Iterable[str], encode: Callable[[list[str]], list[Tensor]]
) -> list[Tensor]:
    """The embedding [tokens, dim] of each prompt. `files` are the text encoder's and the tokenizer's. `encode` makes
    the embeddings that are not kept yet; those of a file that was written again count as not kept.

    A prompt that fills the 512 tokens is not kept: whether it was cut is said while it is encoded."""
    prompts, version = list(prompts), fingerprint(files)
    missing = [prompt for prompt in dict.fromkeys(prompts) if (version, prompt) not in _kept]
    made = dict(zip(missing, encode(missing) if missing else [], strict=True))
    for prompt in prompts:
        if prompt not in made:
            _kept.move_to_end((version, prompt))
    found = [made[prompt] if prompt in made else _kept[version, prompt] for prompt in prompts]
    for prompt, embedding in made.items():
        if len(embedding) < MAX_TOKENS:
            _kept[version, prompt] = embedding.cpu().clone()  # a view would keep the memory of all of them
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return found
