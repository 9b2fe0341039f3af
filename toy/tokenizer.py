"""The tokenizer of the toy packages, in umt5's format with a small vocabulary."""

import json
import string
from collections.abc import Sequence
from pathlib import Path

SPECIAL = ("<pad>", "</s>", "<s>", "<unk>")
SPACE = "\u2581"
WORDS = """
a an and are as at be beyond blue bright by camera castle city clear clouds cold dark day deep distant down evening
field fire fly follow forest from garden gentle glass golden grass green ground hill house ice in into is it journey
lake land leaves left light long low mist moon morning mountain move night no of on over past path people rain red
right river road rock sea shadow ship sky slow slowly snow soft stone sun the through to tower tree trees turn up
video view village walk warm water wave white wind with world
"""
EXTRA_IDS = 20


def vocabulary(more: Sequence[str] = ()) -> list[tuple[str, float]]:
    """Return (token, log probability) of every token in the order of ids. `more` are further tokens."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    characters = [SPACE, *string.ascii_letters, *string.digits, *string.punctuation]
    words = [*(SPACE + word for word in (*string.ascii_lowercase, *WORDS.split())), *more]
    extra = [f"<extra_id_{number}>" for number in reversed(range(EXTRA_IDS))]
    scores = dict.fromkeys((*SPECIAL, *extra, *bytes_), 0.0) | dict.fromkeys(characters, -8.0)
    scores |= dict.fromkeys(words, -9.0)
    order = dict.fromkeys((*SPECIAL, *bytes_, *characters, *words, *extra))
    return [(token, scores[token]) for token in order]


def write_tokenizer(folder: Path, more: Sequence[str] = ()) -> int:
    """Write the toy tokenizer's JSON files, and return the number of token ids. `more` adds tokens to the vocabulary. A
    token that begins a word must start with SPACE."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = vocabulary(more)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    extra = [f"<extra_id_{number}>" for number in range(EXTRA_IDS)]
    _write(folder / "tokenizer.json", _tokenizer(vocab))
    _write(folder / "tokenizer_config.json", names | {"extra_ids": EXTRA_IDS, "tokenizer_class": "T5Tokenizer"})
    _write(folder / "special_tokens_map.json", names | {"additional_special_tokens": extra})
    return len(vocab)


def _tokenizer(vocab: list[tuple[str, float]]) -> dict:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [
        {"id": index, "content": token, **flags}
        for index, (token, _) in enumerate(vocab)
        if token in SPECIAL or token.startswith("<extra_id_")
    ]
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    eos = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    row = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": spaces,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [row, eos],
            "pair": [row, eos, {"Sequence": {"id": "B", "type_id": 0}}, eos],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, spaces]},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": True},
    }


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, ensure_ascii=True, indent=1) + "\n", encoding="utf-8")
