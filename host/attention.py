"""Which attention kernel runs: the engine's choice, unless the user or another pack made one."""

from collections.abc import Mapping

import comfy.ldm.modules.attention as comfy_attention
from comfy.cli_args import args
from torch import Tensor

from ..model.attention import sdpa

_SWITCHES = (
    "use_sage_attention", "use_flash_attention", "use_ck_attention", "use_split_cross_attention",
    "use_quad_cross_attention",
)  # fmt: skip


def self_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, options: Mapping) -> Tensor:
    """Attention among a row's tokens, then every `attn1_patch`."""
    out = cross_attention(q, k, v, heads, options)
    for patch in options.get("patches", {}).get("attn1_patch", ()):
        split = {"q": q.unflatten(-1, (heads, -1)), "k": k.unflatten(-1, (heads, -1))}
        out = patch({"x": out, **split, "transformer_options": options})
    return out


def cross_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, options: Mapping) -> Tensor:
    """ComfyUI's attention where a command line switch or an override asks for it, else the engine's faster one."""
    if "optimized_attention_override" in options or any(getattr(args, switch, False) for switch in _SWITCHES):
        return comfy_attention.optimized_attention(q, k, v, heads=heads, transformer_options=options)
    return sdpa(q, k, v, heads, options)
