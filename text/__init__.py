"""Prompts: the events that extend them in time, and their umt5 embeddings."""

from .encoder import encode
from .prompts import NEGATIVE_PROMPT, clean_prompt
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["NEGATIVE_PROMPT", "Tokenizer", "clean_prompt", "encode", "load_tokenizer"]
