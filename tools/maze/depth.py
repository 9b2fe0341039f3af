"""How many blocks the denoiser has: as many as its checkpoint, or more where a training is to make it deeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ...errors import InputError
from ...model.config import ModelConfig
from ..toyworld.parameters import Parameters, Weights, load_weights
from ..toyworld.twin import of_block
from .settings import CONFIG

SILENT = frozenset(
    f"{layer}.{kind}"
    for kind in ("weight", "bias")
    for layer in ("self_attn.o", "cross_attn.o", "ffn.2", "cam_scale_layer", "cam_shift_layer")
)
"""What adds to the residual stream or scales it: a block in which these are zero changes nothing."""


def config_of(weights: Mapping[str, Tensor]) -> ModelConfig:
    """The sizes of a denoiser with these weights, which tell all but the number of heads."""
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    return ModelConfig.from_shapes(shapes, num_heads=CONFIG.num_heads)


def depth(folder: Path, layers: int | None = None) -> int:
    """How many blocks a training in a folder is of: `layers`, else those of its checkpoint, else the settings'. Raises
    InputError where that would take some away."""
    file = folder / "denoiser.pt"
    has = config_of(load_weights(file)).num_layers if file.is_file() else 0
    if layers is not None and layers < max(has, 1):
        found = f"{file} has {has}, and none can be taken away" if has else "a denoiser has at least 1"
        raise InputError(f"--layers {layers}: {found}")
    return layers or has or CONFIG.num_layers


def grown(weights: Weights, layers: int, device: torch.device) -> Parameters:
    """A denoiser of so many blocks, no fewer than it has, that computes what `weights` do: copies of its blocks are put
    in between, evenly, and change nothing until they have learned."""
    config = config_of(weights)
    tensors = {name: weight for name, weight in weights.items() if not name.startswith("blocks.")}
    sources = [index * config.num_layers // layers for index in range(layers)]
    for index, source in enumerate(sources):
        copied = source in sources[:index]
        for name, weight in of_block(weights, source).items():
            silent = copied and name in SILENT
            tensors[f"blocks.{index}.{name}"] = torch.zeros_like(weight) if silent else weight
    return Parameters.of(tensors, replace(config, num_layers=layers).parameter_shapes(), device)
