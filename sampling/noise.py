"""The noise for a causal model's chunks: StepNoise for live sessions, PathNoise for camera paths of known length."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class StepNoise:
    """A source of noise that depends only on the seed, the index of the chunk, and the step. A live session that is
    repeated with the same inputs therefore has the same frames."""

    order = "chunk and step"

    def __init__(self, seed: int, chunk: int, cells: tuple[int, int]) -> None:
        """Create a source for chunks of `chunk` latent frames. `cells` is the height and width of the latent."""
        self._seed, self._shape = seed, (1, 16, chunk, *cells)
        self._chunk = self._step = 0

    def begin(self, chunk: int) -> Tensor:
        """Begin the chunk with the index `chunk`, and return its initial noise, float32 [1, 16, n, h, w]."""
        self._chunk, self._step = chunk, -1
        return self.draw(self._shape)

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Return the noise for the current chunk's next step, float32 of this `shape` on the CPU."""
        self._step += 1
        name = f"{self._seed} {self._chunk} {self._step}".encode()
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
        return torch.randn(shape, generator=torch.Generator().manual_seed(number))


class PathNoise:
    """A source of noise for a video of known length, with the methods of `StepNoise`. `latent_frames` is the video's
    number of latent frames; the other arguments are as in `StepNoise`.

    One generator draws the initial noise of all latent frames at construction. `draw` continues with the same
    generator, so the steps' noise depends on the order of the calls. ComfyUI's node Rollout draws in the same order.
    """

    order = "video, then steps"

    def __init__(self, seed: int, chunk: int, cells: tuple[int, int], latent_frames: int) -> None:
        self._generator, self._size = torch.Generator().manual_seed(seed), chunk
        self._drawn = self.draw((1, 16, latent_frames, *cells))

    def begin(self, chunk: int) -> Tensor:
        """Return the initial noise of the chunk with the index `chunk`, float32 [1, 16, n, h, w]: a view of the noise
        that was drawn at construction."""
        return self._drawn[:, :, chunk * self._size : (chunk + 1) * self._size]

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator)


Noise = StepNoise | PathNoise
