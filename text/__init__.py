"""Prompts: events, which extend a prompt at certain times, and the conversion of prompts to embeddings by a umt5
encoder with at most two blocks in memory."""

from .encoder import encode
from .prompts import NEGATIVE_PROMPT, clean_prompt
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["NEGATIVE_PROMPT", "Tokenizer", "clean_prompt", "encode", "load_tokenizer"]
