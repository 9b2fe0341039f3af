"""Prompt text before it becomes tokens: the official cleaning, and a default negative prompt."""

import html
import re
from pathlib import Path

from .dependencies import require

NEGATIVE_PROMPT = Path(__file__).with_name("negative_prompt.txt").read_text(encoding="utf-8").strip()
"""Our own list, in Chinese, of the flaws that Wan-type models are usually told to avoid."""


def clean_prompt(text: str) -> str:
    """What Wan's tokenizer is fed: mojibake and width variants mended (ftfy), HTML entities resolved twice,
    every run of white space one space, none at the ends."""
    mended = require("ftfy").fix_text(text)
    plain = html.unescape(html.unescape(mended))
    return re.sub(r"\s+", " ", plain).strip()
