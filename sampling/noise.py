"""The noise of a session's chunks."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class StepNoise:
    """Noise that depends on the seed, the chunk's number and the step alone.

    So a chunk that is restarted has the same noise, and a session that is replayed from its inputs has the same frames.
    """

    order = "chunk and step"

    def __init__(self, seed: int, chunk: int, cells: tuple[int, int]) -> None:
        """Create the noise for chunks of `chunk` latent frames; `cells`: height and width of the latent."""
        self._seed, self._shape = seed, (1, 16, chunk, *cells)
        self._chunk = self._step = 0

    def begin(self, chunk: int) -> Tensor:
        """Return the chunk's initial noise; `draw` then returns the noise of its further steps."""
        self._chunk, self._step = chunk, -1
        return self.draw(self._shape)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return the float32 noise of the chunk's next step, on the CPU."""
        self._step += 1
        name = f"{self._seed} {self._chunk} {self._step}".encode()
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        return torch.randn(shape, generator=torch.Generator().manual_seed(number))


class PathNoise:
    """Noise for a path that is known in advance: first for all latent frames, then for the steps in order.

    A Rollout of the same seed draws the same noise."""

    order = "video, then steps"

    def __init__(self, seed: int, chunk: int, cells: tuple[int, int], latent_frames: int) -> None:
        self._generator, self._size = torch.Generator().manual_seed(seed), chunk
        self._drawn = self.draw((1, 16, latent_frames, *cells))

    def begin(self, chunk: int) -> Tensor:
        """Return the chunk's initial noise."""
        return self._drawn[:, :, chunk * self._size : (chunk + 1) * self._size]

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return the next float32 noise of the video, on the CPU."""
        return torch.randn(shape, generator=self._generator)


Noise = StepNoise | PathNoise
