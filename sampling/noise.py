"""The noise of a walk."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class StepNoise:
    """Noise that depends on the seed, the chunk's number in the walk and the step alone. So a chunk that is begun again
    has the same noise, and a walk that is replayed from its inputs has the same frames."""

    order = "chunk and step"

    def __init__(self, seed: int, chunk: int, cells: tuple[int, int]) -> None:
        """`chunk`: latent frames of a chunk; `cells`: height and width of the latent."""
        self._seed, self._shape = seed, (1, 16, chunk, *cells)
        self._chunk = self._step = 0

    def begin(self, chunk: int) -> Tensor:
        """Return the noise that this chunk begins with; `draw` then returns that of its further steps."""
        self._chunk, self._step = chunk, -1
        return self.draw(self._shape)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        self._step += 1
        name = f"{self._seed} {self._chunk} {self._step}".encode()
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        return torch.randn(shape, generator=torch.Generator().manual_seed(number))


class PathNoise:
    """The noise of a path that is known: that of all latent frames first, then that of the steps in order, as a Rollout
    of the same seed draws it."""

    order = "video, then steps"

    def __init__(self, seed: int, chunk: int, cells: tuple[int, int], latent_frames: int) -> None:
        self._generator, self._size = torch.Generator().manual_seed(seed), chunk
        self._drawn = self.draw((1, 16, latent_frames, *cells))

    def begin(self, chunk: int) -> Tensor:
        """Return the noise that this chunk begins with."""
        return self._drawn[:, :, chunk * self._size : (chunk + 1) * self._size]

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator)


Noise = StepNoise | PathNoise
