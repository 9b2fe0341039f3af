"""Mapping of tensor names and config.json keys from diffusers' to the official ones."""

import re
from pathlib import Path
from typing import Any

from ..weights.files import read_json

MARKS = ("condition_embedder.", ".attn1.to_q.")
"""Parts of tensor names that only diffusers uses."""
CAUSAL_CLASS = "CausalLingBotWorldTransformer3DModel"
"""The `_class_name` in diffusers' config.json of LingBot-World Fast and 2.0."""

_BLOCK = re.compile(r"blocks\.\d+\.")
_OUTSIDE = (
    ("condition_embedder.time_embedder.linear_1.", "time_embedding.0."),
    ("condition_embedder.time_embedder.linear_2.", "time_embedding.2."),
    ("condition_embedder.text_embedder.linear_1.", "text_embedding.0."),
    ("condition_embedder.text_embedder.linear_2.", "text_embedding.2."),
    ("condition_embedder.time_proj.", "time_projection.1."),
    ("scale_shift_table.", "head.modulation."),
    ("proj_out.", "head.head."),
)
"""Name prefixes outside of the blocks, as pairs (diffusers, official)."""
_IN_BLOCK = (
    ("scale_shift_table.", "modulation."),
    ("attn1.to_out.0.", "self_attn.o."),
    ("attn1.norm_", "self_attn.norm_"),
    ("attn1.to_", "self_attn."),
    ("attn2.to_out.0.", "cross_attn.o."),
    ("attn2.norm_", "cross_attn.norm_"),
    ("attn2.to_", "cross_attn."),
    ("norm2.", "norm3."),
    ("ffn.net.0.proj.", "ffn.0."),
    ("ffn.net.2.", "ffn.2."),
)
"""Name prefixes after `blocks.N.`, as pairs (diffusers, official). The first match counts."""
_CONFIG = {"num_attention_heads": "num_heads", "in_channels": "in_dim", "out_channels": "out_dim"}


def official_name(name: str) -> str:
    """Return the official name of a transformer tensor or layer. Unknown names stay unchanged."""
    return _translate(name, from_diffusers=True)


def diffusers_name(name: str) -> str:
    """Return diffusers' name of a transformer tensor or layer. Unknown names stay unchanged."""
    return _translate(name, from_diffusers=False)


def _translate(name: str, *, from_diffusers: bool) -> str:
    block = _BLOCK.match(name)
    start = block[0] if block else ""
    rest = f"{name.removeprefix(start)}."  # with a dot at the end, a whole name matches too
    for theirs, ours in _IN_BLOCK if block else _OUTSIDE:
        old, new = (theirs, ours) if from_diffusers else (ours, theirs)
        if rest.startswith(old):
            return f"{start}{new}{rest.removeprefix(old)}".removesuffix(".")
    return name


def official_config(stated: dict[str, Any]) -> dict[str, Any]:
    """Return `stated`, the content of diffusers' config.json, with Wan's keys added, such as `dim` and `num_heads`."""
    heads, width = stated.get("num_attention_heads"), stated.get("attention_head_dim")
    sizes = {"dim": heads * width} if isinstance(heads, int) and isinstance(width, int) else {}
    return stated | {ours: stated[theirs] for theirs, ours in _CONFIG.items() if theirs in stated} | sizes


def stated_shift(model: Path) -> float | None:
    """Return `flow_shift` from the scheduler_config.json of a model, or None. Raise CheckpointError if unreadable."""
    file = model.parent / "scheduler" / "scheduler_config.json"
    shift = read_json(file, optional=True).get("flow_shift")
    return float(shift) if isinstance(shift, int | float) else None
