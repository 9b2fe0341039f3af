"""A model's parameters in one flat tensor, for averaging, optimization and checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, Tensor]  # the parameters by official names

ZERO_WEIGHTS = ("head.head", "cam_scale_layer", "cam_shift_layer", "proj")
"""Ends of the names of layers that begin at zero, so that the sums with them begin unchanged."""


class Parameters:
    """All parameters in `flat`, float32 [count]; `named` returns views of the official names and shapes."""

    def __init__(self, shapes: Shapes, flat: Tensor) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.flat = flat

    @classmethod
    def random(cls, shapes: Shapes, seed: int, device: torch.device) -> Parameters:
        """Return new parameters, the same for a seed on every machine."""
        generator = torch.Generator().manual_seed(seed)
        parts = [_initial(name, shape, generator).flatten() for name, shape in shapes.items()]
        return cls(shapes, torch.cat(parts).to(device))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], shapes: Shapes, device: torch.device) -> Parameters:
        return cls(shapes, torch.cat([tensors[name].float().flatten() for name in shapes]).to(device))

    @classmethod
    def resumed(cls, folder: Path, name: str, shapes: Shapes, seed: int, device: torch.device) -> Parameters:
        """Return the parameters of the checkpoint `name` in a folder, or new ones if it does not exist."""
        file = folder / f"{name}.pt"
        if not file.is_file():
            return cls.random(shapes, seed, device)
        return cls.of(load_weights(file), shapes, device)

    def named(self) -> dict[str, Tensor]:
        """Return views of the flat tensor, which also receives their gradients."""
        parts = self.flat.split(self.sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def stored(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return copies on the CPU in `dtype`."""
        return {name: tensor.detach().to("cpu", dtype).clone() for name, tensor in self.named().items()}


def load_weights(file: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Load a checkpoint's tensors as float32."""
    return {name: tensor.float() for name, tensor in torch.load(file, map_location=device, weights_only=True).items()}


def save_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a checkpoint, by renaming: a run may be stopped at any time."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    torch.save(dict(tensors), unfinished)
    os.replace(unfinished, file)


def keep(file: Path, parameters: Parameters) -> None:
    """Write a checkpoint in bfloat16."""
    save_weights(parameters.stored(torch.bfloat16), file)


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return weights that keep the variance. Biases are not zero: a VAE's norms divide by a grey frame's length."""
    layer, _, kind = name.rpartition(".")
    if "modulation" in name:
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
    if kind == "gamma" or (kind == "weight" and len(shape) == 1):
        return torch.ones(shape)
    if layer.endswith(ZERO_WEIGHTS):
        return torch.zeros(shape)
    if kind == "bias":
        return 0.02 * torch.randn(shape, generator=generator)
    limit = math.sqrt(3 / math.prod(shape[1:]))
    return (2 * torch.rand(shape, generator=generator) - 1) * limit
