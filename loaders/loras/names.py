"""The model's layer and the tensor's role, such as up or down, for a key in a LoRA file."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from ..diffusers_names import diffusers_name

PREFIXES = (
    *("base_model.model.", "model.diffusion_model.", "diffusion_model.", "pipe.dit.", "transformer.", "module."),
    *("model.", "unet.", "dit.", "lora_unet__", "lora_unet_", "lora_transformer_", "lycoris_"),
)
"""Prefixes of layer names in files of ComfyUI, PEFT, DiffSynth, diffusers, kohya, musubi, VideoX-Fun and others."""
DOWN = ("lora_A", "lora_down", "lora.down", "lora_linear_layer.down")
UP = ("lora_B", "lora_up", "lora.up", "lora_linear_layer.up")
SCALES = ("alpha", "scale", "scalar")
WHOLE = {"diff": "diff", "w_norm": "diff", "diff_b": "diff_b", "b_norm": "diff_b", "diff_m": "diff_m"}
"""The key endings of tensors that are added without low-rank matrices. Values are roles: `diff` for a weight, `diff_b`
for a bias, `diff_m` for the modulation."""
OTHER_KINDS: dict[str, tuple[str, ...]] = {
    "LoHa": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"),
    "LoKr": ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
    "DoRA": ("dora_scale", "lora_magnitude_vector"),
    "OFT": ("oft_blocks", "oft_diag", "oft_r", "oft_R", "rescale"),
    "GLoRA": ("a1", "a2", "b1", "b2"),
    "a Tucker decomposition": ("lora_mid",),
    "a VeRA": ("vera_lambda_b", "vera_lambda_d"),
    "(IA)3": ("ia3_l",),
    "whole weights that replace the model's": ("set_weight", "modules_to_save", "reshape_weight"),
}

_NAMES = sorted({*DOWN, *UP, *SCALES, *WHOLE, *(part for parts in OTHER_KINDS.values() for part in parts)})
_PART = re.compile(
    rf"(?P<layer>.+?)[._](?P<part>{'|'.join(map(re.escape, reversed(_NAMES)))})"
    r"(?:\.(?!weight$|bias$)[\w-]+)?(?:\.(?P<end>weight|bias))?$"
)


class Part(NamedTuple):
    """A parsed key of a LoRA file.

    layer: the layer's official name; None if the model has no such layer.
    role: what the tensor is, such as `down`, `up`, `down_bias`, `alpha`, `diff` (added to a weight) or `hada_w1_a`
    (another adapter kind).
    raw: the layer's name in the file, without prefixes.
    """

    layer: str | None
    role: str
    raw: str


class LayerNames:
    """A mapping from layer names in LoRA files to the model's official layer names. A file's names may be official or
    diffusers', with dots or underscores."""

    def __init__(self, parameters: Iterable[str]) -> None:
        self._official: dict[str, str] = {}
        for name in parameters:
            layer = name.removesuffix(".weight")
            for spelling in (layer, diffusers_name(layer), diffusers_name(layer).removesuffix(".to_out.0") + ".to_out"):
                self._official.setdefault(_flat(spelling), layer)

    def part_of(self, key: str) -> Part | None:
        """Parse a LoRA file's key into the layer and the tensor's role, such as `down` or `alpha`. Return None if the
        key does not end in a known role's name."""
        match = _PART.match(key)
        if match is None:
            return None
        raw, role = match["layer"], match["part"]
        while (prefix := next((each for each in PREFIXES if raw.startswith(each)), None)) is not None:
            raw = raw.removeprefix(prefix)
        role = "down" if role in DOWN else "up" if role in UP else WHOLE.get(role, role)
        if role in ("down", "up") and match["end"] == "bias":
            role = f"{role}_bias"
        tried = (f"{raw}.modulation", raw) if role == "diff_m" else (raw,)
        found = (self._official.get(_flat(each)) for each in tried)
        return Part(next((layer for layer in found if layer is not None), None), role, raw)


def _flat(name: str) -> str:
    return name.replace(".", "_")
