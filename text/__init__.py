"""Prompts to embeddings: cleaned text, token ids, a umt5 encoder of which two blocks at most are in memory."""

from .encoder import encode
from .prompts import NEGATIVE_PROMPT, clean_prompt
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["NEGATIVE_PROMPT", "Tokenizer", "clean_prompt", "encode", "load_tokenizer"]
