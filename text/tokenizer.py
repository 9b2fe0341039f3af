"""umt5 tokenizers, from a `tokenizer.json` (official ids) or a sentencepiece model (nearly the same ids)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import LingBotError, TextError, require
from ..loaders.package import TOKENIZER_FILES, TOKENIZER_FOLDERS, tokenizer_in
from ..weights.files import read_tensors
from .prompts import clean_prompt

MAX_TOKENS = 512
EOS = "</s>"

_PANIC = "PanicException"
"""The class name of a Rust panic in the tokenizers library: a BaseException that cannot be imported."""

_SUFFIXES = (".json", ".model", ".safetensors")
_WHAT_BELONGS = (
    "Put the package's tokenizer/ folder (tokenizer.json), or the spiece.model of google/umt5-xxl, next to the encoder."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tokenizer:
    """A umt5 tokenizer.

    source: the path or name of its file.
    to_ids: converts cleaned text to ids without the end-of-sequence token.
    eos: the id of the end-of-sequence token.
    """

    source: str
    to_ids: Callable[[str], list[int]]
    eos: int
    vocab_size: int

    def encode(self, text: str, warn: Callable[[str], None] = log.warning) -> list[int]:
        """Return up to 512 token ids of the cleaned text, with `eos` last. `warn` gets a message about truncation."""
        ids = self.to_ids(clean_prompt(text))
        if len(ids) >= MAX_TOKENS:
            warn(truncation_warning(len(ids) + 1, text))
        return [*ids[: MAX_TOKENS - 1], self.eos]


def truncation_warning(count: int, text: str) -> str:
    """Return the warning that a prompt of `count` tokens is truncated, with the beginning of `text`."""
    return (
        f"The prompt has {count} tokens, the text encoder takes {MAX_TOKENS}: the last {count - MAX_TOKENS} are cut "
        f"off. It begins {text[:60]!r}."
    )


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer. Raise TextError if `path` has none that is readable, DependencyError if its library (tokenizers
    or sentencepiece) is missing."""
    file = find_tokenizer(path)
    try:
        if file.suffix == ".json":
            return _from_json(file)
        return _from_sentencepiece(file)
    except LingBotError:
        raise
    except BaseException as error:  # tokenizers raises bare Exception; sentencepiece RuntimeError and OSError
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise TextError(f"{file} is not a tokenizer that can be read: {error}") from error


def find_tokenizer(path: str | Path) -> Path:
    """Return the tokenizer file that `load_tokenizer` reads for `path`. Raise TextError if none exists."""
    path = Path(path)
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise TextError(f"{path} holds no tokenizer, and there is none next to it. {_WHAT_BELONGS}")
        return path
    folders = [path, *(path / name for name in TOKENIZER_FOLDERS)]
    found = next(filter(None, map(tokenizer_in, folders)), None)
    if found is None:
        files = ", ".join(str(folder / name) for folder in folders for name in TOKENIZER_FILES)
        raise TextError(f"no tokenizer found; looked for {files if path.is_dir() else path}. {_WHAT_BELONGS}")
    return found


def _from_json(file: Path) -> Tokenizer:
    tokenizer = require("tokenizers").Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    eos = tokenizer.token_to_id(EOS)
    if eos is None:
        raise TextError(f"{file}: the vocabulary has no {EOS}; this is not a T5 tokenizer")

    def to_ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    return Tokenizer(str(file), to_ids, eos, tokenizer.get_vocab_size(with_added_tokens=True))


def _from_sentencepiece(file: Path) -> Tokenizer:
    model = read_tensors(file).get("spiece_model") if file.suffix == ".safetensors" else file.read_bytes()
    if model is None:
        raise TextError(f"{file} has no spiece_model tensor, so it holds no tokenizer; give a tokenizer folder")
    content = model if isinstance(model, bytes) else model.view().numpy().tobytes()
    processor = require("sentencepiece").SentencePieceProcessor(model_proto=content)
    log.info(
        "%s is read with sentencepiece: ids may differ from the official ones where a prompt holds special literals "
        "such as </s>, or characters that the vocabulary does not know. A tokenizer.json gives them exactly.",
        file.name,
    )
    return Tokenizer(file.name, processor.encode, processor.eos_id(), processor.vocab_size())
