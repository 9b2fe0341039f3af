"""Tiny random models: the weights of experts, a text encoder and a VAE under their official names."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..model.config import ModelConfig
from ..text.weights import UMT5Config
from ..vae.weights import vae_shapes

EXPERT = ModelConfig(dim=256, ffn_dim=512, num_heads=2, num_layers=3, freq_dim=256, text_dim=64)
VAE_WIDTH = 8


def text_config(vocab_size: int) -> UMT5Config:
    """Return the sizes of the toy package's umt5 encoder."""
    return UMT5Config(vocab_size, dim=64, attention_dim=64, ffn_dim=128, num_heads=4, num_layers=2, buckets=32)


class Weights:
    """A source of random weights for toy models. Equal seeds give equal numbers on every machine."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))

    def uniform(self, shape: tuple[int, ...], std: float, mean: float = 0.0) -> Tensor:
        """Return uniform random float32 numbers with the standard deviation `std` and the mean `mean`."""
        values = self._random.random(shape, dtype=np.float32) * 2 - 1
        return torch.from_numpy(values * np.float32(std * math.sqrt(3)) + np.float32(mean))

    def layer(self, name: str, shape: tuple[int, ...], gain: float = 1.0) -> Tensor:
        """Return a random norm scale, bias or layer weight, chosen by `name` and rank. A layer weight multiplies its
        input's variance by `gain` squared."""
        if name.endswith("gamma") or (len(shape) == 1 and name.endswith("weight")):
            return self.uniform(shape, 0.05, mean=1.0)
        if len(shape) == 1:
            return self.uniform(shape, 0.02)
        return self.uniform(shape, gain / math.sqrt(math.prod(shape[1:])))


def expert_tensors(seed: int, config: ModelConfig = EXPERT) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for every parameter of a random expert, in float32."""
    weights = Weights(seed)
    for name, shape in config.parameter_shapes().items():
        if "modulation" in name:
            yield name, weights.uniform(shape, 0.3)
        else:
            yield name, weights.layer(name, shape, gain=0.5 if "cam_s" in name else 1.0)


def text_tensors(seed: int, vocab_size: int) -> dict[str, Tensor]:
    """Return the weights of a random umt5 encoder for `vocab_size` token ids, bf16, by official name."""
    weights = Weights(seed)
    tensors = {
        name: weights.uniform(shape, 1.0)
        if "embedding" in name
        else weights.layer(name, shape, gain=0.3 if name.endswith("attn.q.weight") else 1.0)
        for name, shape in text_config(vocab_size).parameter_shapes().items()
    }
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def vae_tensors(seed: int) -> dict[str, Tensor]:
    """Return the fp32 weights of a random VAE by name."""
    weights = Weights(seed)
    return {
        name: weights.layer(name, shape, gain=0.4 if name.startswith("decoder.head") else 1.0)
        for name, shape in vae_shapes(VAE_WIDTH).items()
    }
