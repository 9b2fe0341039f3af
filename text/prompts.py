"""Cleaning of prompt text as in the official code, and a default negative prompt."""

import html
import re
from pathlib import Path

from ..errors import require

NEGATIVE_PROMPT = Path(__file__).with_name("negative_prompt.txt").read_text(encoding="utf-8").strip()
"""The default negative prompt: this project's list, in Chinese, of usual flaws."""


def clean_prompt(text: str) -> str:
    """Clean text as Wan's tokenizer does: repair characters, resolve HTML entities, collapse whitespace."""
    mended = require("ftfy").fix_text(text)
    plain = html.unescape(html.unescape(mended))
    return re.sub(r"\s+", " ", plain).strip()
