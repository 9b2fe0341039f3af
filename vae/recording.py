"""A latent frame's decoding as a CUDA graph: the GPU repeats recorded kernels, without Python between them.

A latent frame asks a GPU for more kernels than Python launches while it computes them. Replayed, they follow each other
at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.graphs.capture import ONE_AT_A_TIME, failure_of

Decode = Callable[[Tensor], Iterator[Tensor]]
"""What is recorded: kernels alone, on memory that stays where it is. The frames of a latent frame."""


class Recording:
    """Decodes the latent frames of one video, all of one size, but for the first, which is another kind. The first that
    it gets is decoded as usual, the second is recorded, and that is replayed from then on. If recording fails, all are
    decoded as usual."""

    def __init__(self) -> None:
        self._frames: list[Tensor] = []
        self._kept: tuple[Tensor, torch.cuda.CUDAGraph] | None = None
        self._failed = False

    @property
    def made(self) -> bool:
        """Whether there is one."""
        return self._kept is not None

    def decode(self, decode: Decode, latent: Tensor) -> Iterator[Tensor]:
        """`decode(latent)`, computed or replayed. Replayed frames are there until the next latent frame."""
        if self._failed:
            return decode(latent)
        if not self._frames:
            return self._noted(decode(latent))
        self._kept = self._kept or self._record(decode, latent)
        if self._kept is None:
            return decode(latent)
        own, graph = self._kept
        own.copy_(latent)
        graph.replay()
        return iter(self._frames)

    def _noted(self, frames: Iterator[Tensor]) -> Iterator[Tensor]:
        """The frames, and room for such ones."""
        for frame in frames:
            self._frames.append(torch.empty_like(frame))
            yield frame

    def _record(self, decode: Decode, latent: Tensor) -> tuple[Tensor, torch.cuda.CUDAGraph] | None:
        """The graph, and the latent that it decodes, or None where that fails. Nothing is computed meanwhile. What
        torch holds in reserve goes back before: what is recorded does not take from it."""
        try:
            with ONE_AT_A_TIME:
                torch.cuda.empty_cache()
                own = latent.clone()
                return own, self._recorded(decode, own)
        except RuntimeError as reason:
            logging.warning("The VAE's decoder cannot be recorded as a CUDA graph, and runs as usual: %s", reason)
        self._failed, self._frames = True, []
        with suppress(RuntimeError):
            torch.cuda.empty_cache()
        return None

    def _recorded(self, decode: Decode, latent: Tensor) -> torch.cuda.CUDAGraph:
        graph, failure = torch.cuda.CUDAGraph(), ""
        with torch.cuda.stream(_stream(latent.device)):
            one = latent.new_ones(8, 8)
            F.linear(one, one, one[0])  # cuBLAS takes memory for this thread and stream, which outlives the recording
            # other threads may allocate and wait meanwhile: "thread_local"
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                failure = failure_of(lambda: self._put(decode, latent))
            finally:
                graph.capture_end()
        if failure:
            raise RuntimeError(failure)
        return graph

    def _put(self, decode: Decode, latent: Tensor) -> None:
        """The frames where they are found after each replay."""
        for room, frame in zip(self._frames, decode(latent), strict=True):
            room.copy_(frame)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings of a GPU: cuBLAS keeps memory for each stream that it has worked on."""
    return torch.cuda.Stream(device)
