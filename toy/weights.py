"""Tiny random weights under the names and in the shapes of the real files: experts, text encoder, VAE."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..model.config import ModelConfig
from ..text.weights import UMT5Config

EXPERT = ModelConfig(dim=256, ffn_dim=512, num_heads=2, num_layers=3, freq_dim=256, text_dim=64)
VAE_WIDTH, VAE_LATENT = 8, 16
VAE_MULTIPLES = (1, 2, 4, 4)
VAE_IN_TIME = (False, True, True)  # whether each of the encoder's three downsamplings halves time too


def text_config(vocab_size: int) -> UMT5Config:
    """A umt5 encoder as wide as the toy expert's prompts."""
    return UMT5Config(vocab_size, dim=64, attention_dim=64, ffn_dim=128, num_heads=4, num_layers=2, buckets=32)


class Weights:
    """Draws random tensors, the same on every machine: uniform numbers of PCG64, scaled."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))

    def uniform(self, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Tensor:
        values = self._random.random(shape, dtype=np.float32) * 2 - 1
        return torch.from_numpy(values * np.float32(std * math.sqrt(3)) + np.float32(mean))

    def layer(self, name: str, shape: tuple[int, ...], gain: float = 1.0) -> Tensor:
        """A weight that multiplies the variance by `gain` squared; a bias near 0; a norm's weight near 1."""
        if name.endswith("gamma") or (len(shape) == 1 and name.endswith("weight")):
            return self.uniform(shape, 0.05, mean=1.0)
        if len(shape) == 1:
            return self.uniform(shape, 0.02)
        return self.uniform(shape, gain / math.sqrt(math.prod(shape[1:])))


def expert_tensors(seed: int) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of a toy expert. Its velocity is of scale 1 and depends on prompt, camera and image."""
    weights = Weights(seed)
    for name, shape in EXPERT.parameter_shapes().items():
        if "modulation" in name:
            yield name, weights.uniform(shape, 0.3)
        else:
            yield name, weights.layer(name, shape, gain=0.5 if "cam_s" in name else 1.0)


def text_tensors(seed: int, vocab_size: int) -> dict[str, Tensor]:
    """The umt5 encoder's state dict in bf16, official names."""
    weights = Weights(seed)
    tensors = {
        name: weights.uniform(shape, 1.0)
        if "embedding" in name
        else weights.layer(name, shape, gain=0.3 if name.endswith("attn.q.weight") else 1.0)
        for name, shape in text_config(vocab_size).parameter_shapes().items()
    }
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def vae_tensors(seed: int) -> dict[str, Tensor]:
    """The VAE's state dict in fp32, official names. It decodes to frames of medium contrast."""
    weights = Weights(seed)
    return {
        name: weights.layer(name, shape, gain=0.4 if name.startswith("decoder.head") else 1.0)
        for name, shape in vae_shapes().items()
    }


def vae_shapes(width: int = VAE_WIDTH) -> dict[str, tuple[int, ...]]:
    """Official key -> shape of Wan 2.1's VAE of that base width (the real one has 96)."""
    wide, narrow = width * VAE_MULTIPLES[-1], width * VAE_MULTIPLES[0]
    return {
        **_conv("encoder.conv1", 3, narrow),
        **_encoder_stages(width),
        **_middle("encoder", wide),
        **_norm_conv("encoder.head", wide, 2 * VAE_LATENT),
        **_conv("conv1", 2 * VAE_LATENT, 2 * VAE_LATENT, kernel=(1, 1, 1)),
        **_conv("conv2", VAE_LATENT, VAE_LATENT, kernel=(1, 1, 1)),
        **_conv("decoder.conv1", VAE_LATENT, wide),
        **_middle("decoder", wide),
        **_decoder_stages(width),
        **_norm_conv("decoder.head", narrow, 3),
    }


def _encoder_stages(width: int) -> dict[str, tuple[int, ...]]:
    shapes, index, channels = {}, 0, width
    for stage, multiple in enumerate(VAE_MULTIPLES):
        for _ in range(2):
            shapes |= _residual(f"encoder.downsamples.{index}", channels, width * multiple)
            channels, index = width * multiple, index + 1
        if stage < len(VAE_IN_TIME):
            name = f"encoder.downsamples.{index}"
            shapes |= _conv(f"{name}.resample.1", channels, channels, kernel=(3, 3))
            if VAE_IN_TIME[stage]:
                shapes |= _conv(f"{name}.time_conv", channels, channels, kernel=(3, 1, 1))
            index += 1
    return shapes


def _decoder_stages(width: int) -> dict[str, tuple[int, ...]]:
    shapes, index, channels = {}, 0, width * VAE_MULTIPLES[-1]
    for stage, multiple in enumerate(reversed(VAE_MULTIPLES)):
        for _ in range(3):
            shapes |= _residual(f"decoder.upsamples.{index}", channels, width * multiple)
            channels, index = width * multiple, index + 1
        if stage < len(VAE_IN_TIME):
            name = f"decoder.upsamples.{index}"
            shapes |= _conv(f"{name}.resample.1", channels, channels // 2, kernel=(3, 3))
            if VAE_IN_TIME[::-1][stage]:
                shapes |= _conv(f"{name}.time_conv", channels, 2 * channels, kernel=(3, 1, 1))
            channels, index = channels // 2, index + 1
    return shapes


def _middle(side: str, channels: int) -> dict[str, tuple[int, ...]]:
    return {
        **_residual(f"{side}.middle.0", channels, channels),
        f"{side}.middle.1.norm.gamma": (channels, 1, 1),
        **_conv(f"{side}.middle.1.to_qkv", channels, 3 * channels, kernel=(1, 1)),
        **_conv(f"{side}.middle.1.proj", channels, channels, kernel=(1, 1)),
        **_residual(f"{side}.middle.2", channels, channels),
    }


def _residual(name: str, channels: int, out: int) -> dict[str, tuple[int, ...]]:
    shapes = {
        f"{name}.residual.0.gamma": (channels, 1, 1, 1),
        **_conv(f"{name}.residual.2", channels, out),
        f"{name}.residual.3.gamma": (out, 1, 1, 1),
        **_conv(f"{name}.residual.6", out, out),
    }
    return shapes if channels == out else shapes | _conv(f"{name}.shortcut", channels, out, kernel=(1, 1, 1))


def _norm_conv(name: str, channels: int, out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.0.gamma": (channels, 1, 1, 1), **_conv(f"{name}.2", channels, out)}


def _conv(name: str, channels: int, out: int, kernel: tuple[int, ...] = (3, 3, 3)) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, channels, *kernel), f"{name}.bias": (out,)}
