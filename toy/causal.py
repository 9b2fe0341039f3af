"""The trained toy's causal model: its low-noise expert, and what a training has changed of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..loaders import Checkpoint, open_checkpoint
from ..loaders.lora import read_loras
from ..loaders.quantized import FourBitWeight
from ..model.quantized.codec import decode, encode
from ..options import LoraFile
from ..quantize.writer import config_json, write_json
from .experts import write_expert

CAUSAL_FILE = "diffusion_pytorch_model.safetensors"
"""As official folders call it."""
ROUNDED = frozenset(
    f"{layer}.weight"
    for layer in (
        "c2ws_hidden_states_layer1",
        "c2ws_hidden_states_layer2",
        "patch_embedding_wancamctrl",
        "text_embedding.0",
        "text_embedding.2",
    )
)
"""Layers that the package has in bf16. The causal model's training had them in 4 bits, and what it has changed answers
the error of these."""


def expert_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every parameter of an expert as float32, 4-bit ones decoded."""
    return {name: _decoded(checkpoint, name) for name in checkpoint.shapes}


def write_causal(folder: Path, expert: Path, change: Path) -> None:
    """The causal model in bf16 as official folders have it: `expert`, a folder, with the LoRA file `change` merged."""
    checkpoint = open_checkpoint(expert)
    weights = changed(causal_start(expert_weights(checkpoint)), change)
    config = replace(checkpoint.config, causal=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_expert(folder / CAUSAL_FILE, config, weights.items(), quant_type=None)
    write_json(folder / "config.json", config_json(config))


def causal_start(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An expert's weights as the causal model's training begins with them."""
    return {name: _in_four_bits(weight) if name in ROUNDED else weight for name, weight in weights.items()}


def _in_four_bits(weight: Tensor) -> Tensor:
    """A weight as it comes back from an NF4 file whose scales were searched as they were then, for the least square
    error alone; the same from every device."""
    return decode(*encode(weight.cpu(), search=True, sums=0), tuple(weight.shape), torch.float32).to(weight.device)


def changed(weights: Mapping[str, Tensor], change: Path) -> dict[str, Tensor]:
    """The weights with what a LoRA file adds to them."""
    added = read_loras([LoraFile(change)], {name: tuple(weight.shape) for name, weight in weights.items()})
    return {name: added[name][0].added_to(weight) if name in added else weight for name, weight in weights.items()}


def _decoded(checkpoint: Checkpoint, name: str) -> Tensor:
    weight = checkpoint.quantized.get(name)
    if isinstance(weight, FourBitWeight):
        return weight.rows(torch.arange(weight.shape[0]))
    return checkpoint.tensors[name].view().float()
