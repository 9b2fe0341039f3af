"""Cleaning of prompt text as in the official code, and a default negative prompt."""

import html
import re
from pathlib import Path

from ..errors import require

NEGATIVE_PROMPT = Path(__file__).with_name("negative_prompt.txt").read_text(encoding="utf-8").strip()
"""The default negative prompt: this project's own list, in Chinese, of the flaws that negative prompts for Wan name."""


def clean_prompt(text: str) -> str:
    """Return the text cleaned as by Wan's tokenizer.

    The library ftfy repairs wrongly decoded and full-width characters, and HTML entities are resolved twice. Runs of
    white space become single spaces; white space at both ends is removed.
    """
    mended = require("ftfy").fix_text(text)
    plain = html.unescape(html.unescape(mended))
    return re.sub(r"\s+", " ", plain).strip()
