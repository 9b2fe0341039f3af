"""The training's prompts: captions in several wordings, the negative prompt, an empty one, and random words."""

import re
import tempfile
import unicodedata
from pathlib import Path

import torch
from torch import Tensor

from ...text import NEGATIVE_PROMPT, load_tokenizer
from ...text.encoder import encode_ids
from ...text.weights import open_weights
from ...toy.tokenizer import SPACE, WORDS, write_tokenizer
from ...toy.weights import text_tensors
from .rooms import CAPTIONS
from .rooms import WORDS as MAZE_WORDS
from .settings import TEXT_TOKENS

TEXT_ENCODER = "models_t5_umt5-xxl-enc-bf16.pth"
SEED = 20
COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "white", "brown"]
"""Words of the vocabulary. The denoiser knows the embeddings of their ids, so they must not change."""
WORDINGS = ("{}", "The camera moves through {}.", "A walk in {}, soft light.")
RANDOM_PROMPTS = 96
NEGATIVE, EMPTY = len(WORDINGS) * len(CAPTIONS), len(WORDINGS) * len(CAPTIONS) + 1


def write_text_files(folder: Path) -> None:
    """Write the package's tokenizer and text encoder, which is random."""
    vocab_size = write_tokenizer(folder / "tokenizer", _tokens())
    torch.save(text_tensors(SEED, vocab_size), folder / TEXT_ENCODER)


def _tokens() -> list[str]:
    """Return the words that the toy's vocabulary lacks, and the phrases of the negative prompt, so that it is short."""
    text = SPACE + unicodedata.normalize("NFKC", NEGATIVE_PROMPT)
    phrases = re.findall(r"[^,\u3001]+[,\u3001]?", text)
    return [*(SPACE + word for word in (*COLOURS, *MAZE_WORDS.split())), *phrases]


def prompts() -> list[str]:
    """Return all prompts: each wording's captions, the negative one, the empty one, random ones."""
    generator = torch.Generator().manual_seed(SEED)
    words = [*WORDS.split(), *COLOURS]
    captions = [wording.format(caption) for wording in WORDINGS for caption in CAPTIONS]
    found = [*captions, NEGATIVE_PROMPT, ""]
    for _ in range(RANDOM_PROMPTS):
        length = int(torch.randint(1, 16, (1,), generator=generator))
        drawn = torch.randint(0, len(words), (length,), generator=generator)
        found.append(" ".join(words[index] for index in drawn.tolist()))
    return found


def embeddings() -> Tensor:
    """Return the embeddings float32 [prompts, TEXT_TOKENS, text_dim] of `prompts()`, padded with zeros."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text_files(folder)
        tokenizer, weights = load_tokenizer(folder), open_weights(folder / TEXT_ENCODER)
        ids = [[*tokenizer.to_ids(prompt), tokenizer.eos] for prompt in prompts()]
        rows = encode_ids(ids, weights)
    table = torch.zeros(len(rows), TEXT_TOKENS, weights.config.dim)
    for into, row in zip(table, rows, strict=True):
        into[: len(row)] = row
    return table


def draw(kinds: Tensor) -> Tensor:
    """Draw a prompt [n] for each kind [n] of house: 75 % its caption, 10 % negative, 5 % empty, 10 % random words."""
    wording = torch.randint(0, len(WORDINGS), kinds.shape, device=kinds.device)
    chance = torch.rand(kinds.shape, device=kinds.device)
    some = EMPTY + 1 + torch.randint(0, RANDOM_PROMPTS, kinds.shape, device=kinds.device)
    picked = torch.where(chance < 0.75, wording * len(CAPTIONS) + kinds, some)
    picked = torch.where((chance >= 0.75) & (chance < 0.85), NEGATIVE, picked)
    return torch.where((chance >= 0.85) & (chance < 0.90), EMPTY, picked)
