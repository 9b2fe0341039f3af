"""Prompt text before it becomes tokens: the official cleaning, and a default negative prompt."""

import html
import re
from pathlib import Path

from ..errors import require

NEGATIVE_PROMPT = Path(__file__).with_name("negative_prompt.txt").read_text(encoding="utf-8").strip()
"""Our own list, in Chinese, of the flaws that Wan-type models are usually told to avoid."""


def clean_prompt(text: str) -> str:
    """The text as Wan's tokenizer takes it: wrongly decoded and full-width characters are mended (ftfy), HTML entities
    resolved twice, and white space becomes single spaces, none at the ends."""
    mended = require("ftfy").fix_text(text)
    plain = html.unescape(html.unescape(mended))
    return re.sub(r"\s+", " ", plain).strip()
