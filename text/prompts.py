"""Prompt text before tokenization: the official cleaning, and a default negative prompt."""

import html
import re
from pathlib import Path

from ..errors import require

NEGATIVE_PROMPT = Path(__file__).with_name("negative_prompt.txt").read_text(encoding="utf-8").strip()
"""Our own list, in Chinese, of the flaws that negative prompts for Wan-type models usually name."""


def clean_prompt(text: str) -> str:
    """Return the text cleaned as for Wan's tokenizer.

    Wrongly decoded and full-width characters are fixed (ftfy) and HTML entities resolved twice. Runs of white space
    become single spaces, and both ends are stripped."""
    mended = require("ftfy").fix_text(text)
    plain = html.unescape(html.unescape(mended))
    return re.sub(r"\s+", " ", plain).strip()
