"""The noise for a causal model's chunks."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class StepNoise:
    """A source of noise for live sessions. The noise depends only on the seed, the chunk's index and the step."""

    order = "chunk and step"

    def __init__(self, seed: int, chunk: int, size: tuple[int, int]) -> None:
        """Create a source for chunks of `chunk` latent frames. `size` is the height and width of the latent."""
        self._seed, self._shape = seed, (1, 16, chunk, *size)
        self._chunk = self._step = 0

    def begin(self, index: int) -> Tensor:
        """Begin the chunk with this index. Return its initial noise, float32 [1, 16, chunk, h, w]."""
        self._chunk, self._step = index, -1
        return self.draw(self._shape)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return the noise for the chunk's next step, float32 on the CPU."""
        self._step += 1
        name = f"{self._seed} {self._chunk} {self._step}".encode()
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        return torch.randn(shape, generator=torch.Generator().manual_seed(number))


class FixedLengthNoise:
    """A source of noise for a video of `latent_frames` latent frames, with StepNoise's methods. One generator draws all
    noise, so the order of the calls matters."""

    order = "video, then steps"

    def __init__(self, seed: int, chunk: int, size: tuple[int, int], latent_frames: int) -> None:
        self._generator, self._chunk = torch.Generator().manual_seed(seed), chunk
        self._drawn = self.draw((1, 16, latent_frames, *size))

    def begin(self, index: int) -> Tensor:
        return self._drawn[:, :, index * self._chunk : (index + 1) * self._chunk]

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator)


Noise = StepNoise | FixedLengthNoise
