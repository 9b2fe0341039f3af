"""Wan 2.1's video VAE, which encodes a start image and decodes latents to frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .decoding import VideoDecoder, decode_latent
from .encoding import encode_first_frame
from .pooled import can_record
from .splitting import Stripe
from .tiny import TINY_DECODER, PreviewDecoder, TinyDecoder, load_tiny_decoder
from .weights import VAE, check_shapes, check_values, is_vae, prepare, read_vae, vae_width

__all__ = [
    "TINY_DECODER",
    "VAE",
    "PreviewDecoder",
    "Stripe",
    "TinyDecoder",
    "VideoDecoder",
    "can_record",
    "check_values",
    "decode_latent",
    "encode_first_frame",
    "is_vae",
    "load_tiny_decoder",
    "load_vae",
    "read_vae",
    "vae_width",
]


def load_vae(
    weights: str | Path | Mapping[str, Tensor],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> VAE:
    """Load a VAE from a file, or build it from tensors with the official names. Raise CheckpointError if tensors are
    missing, have other shapes than Wan 2.1's VAE, or contain NaN or infinity."""
    source = "the VAE's tensors" if isinstance(weights, Mapping) else str(weights)
    if isinstance(weights, Mapping):
        check_shapes(source, {name: tuple(tensor.shape) for name, tensor in weights.items()})
    else:
        weights = read_vae(weights)
    made = prepare(weights, device, dtype)
    check_values(source, made)
    return VAE(made)
