"""Prompts, events that append sentences to a prompt during a video, and umt5 embeddings."""

from .encoder import encode
from .prompts import NEGATIVE_PROMPT, clean_prompt
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["NEGATIVE_PROMPT", "Tokenizer", "clean_prompt", "encode", "load_tokenizer"]
