"""Diffusers' layout of a model: the mapping from its tensor names and its config.json to the official ones.

The diffusers packages of robbyant, the model's publisher, have the official tensor names in `transformer/`. The names
in lingbot-world-v2-14b-causal-fast-diffusers are known from its weight index (1,421 names) in vllm-omni's tests, and
the names in lingbot-world-fast-diffusers from FastVideo.

A model converted by diffusers' scripts/convert_wan_to_diffusers.py has the names of WanTransformer3DModel. The script
has no rule for camera layers, so these keep their official names. Outside of the blocks they are
`patch_embedding_wancamctrl`, `c2ws_hidden_states_layer1` and `c2ws_hidden_states_layer2`. Each block has
`cam_injector_layer1`, `cam_injector_layer2`, `cam_scale_layer` and `cam_shift_layer`.
"""

import re
from pathlib import Path
from typing import Any

from ..weights.files import read_json

MARKS = ("condition_embedder.", ".attn1.to_q.")
"""Parts of tensor names that occur only in diffusers' layout."""
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
"""Prefixes of names outside of the blocks, as pairs (diffusers, official)."""
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
"""Prefixes of names after `blocks.N.`, as pairs (diffusers, official). The first match counts."""
_CONFIG = {"num_attention_heads": "num_heads", "in_channels": "in_dim", "out_channels": "out_dim"}


def official_name(name: str) -> str:
    """Return the official name of a tensor or layer of the transformer. `name` is its name in diffusers."""
    return _translate(name, from_diffusers=True)


def diffusers_name(name: str) -> str:
    """Return diffusers' name of a tensor or layer of the transformer from its official name."""
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
    """Return `stated`, the content of a config.json, with the official keys added to diffusers' keys. All other fields
    are unchanged."""
    heads, width = stated.get("num_attention_heads"), stated.get("attention_head_dim")
    sizes = {"dim": heads * width} if isinstance(heads, int) and isinstance(width, int) else {}
    return stated | {ours: stated[theirs] for theirs, ours in _CONFIG.items() if theirs in stated} | sizes


def stated_shift(model: Path) -> float | None:
    """Return `flow_shift` from scheduler/scheduler_config.json in the folder that contains `model`. Return None without
    this file, or if the field is missing or not a number.

    Raises CheckpointError for a file that is not JSON.
    """
    file = model.parent / "scheduler" / "scheduler_config.json"
    shift = read_json(file, optional=True).get("flow_shift")
    return float(shift) if isinstance(shift, int | float) else None
