"""Prompts: their events, and their conversion to embeddings by text cleaning, token ids, and a umt5 encoder with two
blocks in memory."""

from .encoder import encode
from .prompts import NEGATIVE_PROMPT, clean_prompt
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["NEGATIVE_PROMPT", "Tokenizer", "clean_prompt", "encode", "load_tokenizer"]
