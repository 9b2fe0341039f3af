"""A model's parameters in one flat tensor, so that averaging, stepping and keeping them is one operation each."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]
Weights = dict[str, Tensor]
"""The parameters by official names."""

ZERO_WEIGHTS = ("head.head", "cam_scale_layer", "cam_shift_layer", "proj", "lora_B")
"""The ends of the names of layers that begin at zero, so that the sums which they are added to begin unchanged."""


class Parameters:
    """`flat` float32 [count] holds every parameter; `named` cuts it into tensors of the official names and shapes."""

    def __init__(self, shapes: Shapes, flat: Tensor) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.flat = flat

    @classmethod
    def random(cls, shapes: Shapes, seed: int, device: torch.device) -> Parameters:
        """Fresh parameters, the same for a seed on every machine."""
        generator = torch.Generator().manual_seed(seed)
        parts = [_initial(name, shape, generator).flatten() for name, shape in shapes.items()]
        return cls(shapes, torch.cat(parts).to(device))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], shapes: Shapes, device: torch.device) -> Parameters:
        """The parameters that a checkpoint's `tensors` hold."""
        return cls(shapes, torch.cat([tensors[name].float().flatten() for name in shapes]).to(device))

    @classmethod
    def resumed(cls, folder: Path | None, name: str, shapes: Shapes, seed: int, device: torch.device) -> Parameters:
        """Return the parameters of the checkpoint `name` in a folder, or new ones if it does not exist."""
        file = None if folder is None else folder / f"{name}.pt"
        if file is None or not file.is_file():
            return cls.random(shapes, seed, device)
        return cls.of(load_weights(file), shapes, device)

    def named(self) -> dict[str, Tensor]:
        """Return views of the flat tensor; gradients of their uses reach it."""
        parts = self.flat.split(self.sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def stored(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copies on the CPU in `dtype`, for a checkpoint."""
        return {name: tensor.detach().to("cpu", dtype).clone() for name, tensor in self.named().items()}


def load_weights(file: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """A checkpoint's tensors as float32."""
    return {name: tensor.float() for name, tensor in torch.load(file, map_location=device, weights_only=True).items()}


def save_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Writes a checkpoint. Until it is whole, the one that was there stays: a run may be stopped at any time."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    torch.save(dict(tensors), unfinished)
    os.replace(unfinished, file)


def keep(file: Path, parameters: Parameters) -> None:
    """Writes a checkpoint in bfloat16, half as large: under 16 MB for all but a deeper maze."""
    save_weights(parameters.stored(torch.bfloat16), file)


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return initial weights: small modulations and biases, norms of one, and other weights that keep the variance of
    their input. Biases are not zero, because a VAE's norms divide by the length of a grey frame."""
    layer, _, kind = name.rpartition(".")
    if kind in ("diff", "diff_b"):
        return torch.zeros(shape)
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
