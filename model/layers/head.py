"""The model's last layer, and the embedding of the timestep."""

from typing import Any

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from ..ops.implementation import slices
from ..ops.pointwise import layer_norm
from .operations import Operations, prepared

EMBEDDING_TOKENS = 8192
"""The maximum number of tokens that the camera's embedding, or the head, processes in one step."""


class Head(nn.Module):
    """The last layer: norm, modulation and projection of tokens to 2x2 latent pixels, in the dtype of its input."""

    def __init__(self, config: ModelConfig, operations: Operations, **factory: Any) -> None:
        super().__init__()
        self.eps = config.eps
        self.head = operations.Linear(config.dim, config.out_dim * 4, **factory)
        self.modulation = nn.Parameter(torch.empty(1, 2, config.dim, **factory))

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        """Return the velocity [B, tokens, 4*16] for the residual stream x [B, tokens, dim] and the time embedding e [B,
        dim]."""
        modulation = self.modulation.to(device=x.device, dtype=x.dtype) + e.unsqueeze(1)
        with prepared(self.head, x) as project:
            return torch.stack(
                [
                    torch.cat(
                        [
                            project(layer_norm(row[part], 1 + scale, shift, self.eps, row.dtype))
                            for part in slices(len(row), EMBEDDING_TOKENS)
                        ]
                    )
                    for row, (shift, scale) in zip(x, modulation, strict=True)
                ]
            )


def sinusoid(timestep: Tensor, width: int) -> Tensor:
    """Return the sinusoidal embedding of timestep [B]: cosines, then sines, at width/2 frequencies, fp64 [B, width]."""
    half = width // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=timestep.device) / half)
    angles = torch.outer(timestep.to(torch.float64), rates)
    return torch.cat([angles.cos(), angles.sin()], dim=1)
