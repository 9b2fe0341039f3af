"""A recorder of the VAE's decoding of one latent frame as a CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from ..model.graphs.capture import ONE_AT_A_TIME, failure_of, message_or_raise, on_recording_stream
from ..model.graphs.trial import refusal, relative_error

Decode = Callable[[Tensor], Iterator[Tensor]]
"""A function that decodes a latent frame and yields video frames. It may only launch kernels on memory at constant
addresses."""


class Recording:
    """A CUDA graph for decoding latent frames. The first call decodes directly, the second records and tests the graph,
    and later calls replay it. If recording or the test fails, later calls decode without a graph."""

    def __init__(self, state: Callable[[], Sequence[Tensor]] = tuple) -> None:
        """Create a recorder. `state()` returns the tensors that decoding changes in place, so that a test replay can be
        undone."""
        self._state, self._frames, self._failed = state, list[Tensor](), False
        self._latent: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def made(self) -> bool:
        """Whether a CUDA graph exists and passed its test."""
        return self._graph is not None

    def decode(self, decode: Decode, latent: Tensor) -> Iterator[Tensor]:
        """Return the frames of `decode(latent)`, replayed once a CUDA graph exists. The next replay overwrites them."""
        if self._failed:
            return decode(latent)
        if self._latent is None:
            self._latent = latent.clone()
            return self._allocate(decode(latent))
        if self._graph is None:
            return self._record_and_try(decode, latent)
        self._latent.copy_(latent)
        self._graph.replay()
        return iter(self._frames)

    def _allocate(self, frames: Iterator[Tensor]) -> Iterator[Tensor]:
        for frame in frames:
            self._frames.append(torch.empty_like(frame))
            yield frame

    def _record_and_try(self, decode: Decode, latent: Tensor) -> Iterator[Tensor]:
        """Yield the frames of `decode(latent)`. Record a CUDA graph first, and keep the graph if its replay gives the
        same frames."""
        assert self._latent is not None
        try:
            graph = self._record(decode, self._latent)
            self._latent.copy_(latent)
            self._replay_and_restore(graph)
        except RuntimeError as reason:
            self._drop(f"The VAE's decoder cannot be recorded as a CUDA graph, and runs as usual: {reason}")
            yield from decode(latent)
            return
        errors = []
        for room, frame in zip(self._frames, decode(latent), strict=True):
            errors.append(relative_error([room], [frame]))
            yield frame
        if refused := refusal("The VAE's decoding", max(errors)):
            self._drop(refused)
        else:
            self._graph = graph

    def _replay_and_restore(self, graph: torch.cuda.CUDAGraph) -> None:
        state = self._state()
        before = [tensor.clone() for tensor in state]
        graph.replay()
        for tensor, own in zip(state, before, strict=True):
            tensor.copy_(own)

    def _drop(self, reason: str) -> None:
        logging.warning("%s", reason)
        self._failed, self._frames, self._latent = True, [], None
        with suppress(RuntimeError):
            torch.cuda.empty_cache()

    def _record(self, decode: Decode, latent: Tensor) -> torch.cuda.CUDAGraph:
        with ONE_AT_A_TIME:
            torch.cuda.empty_cache()  # a recording cannot use the memory that torch has cached
            graph = torch.cuda.CUDAGraph()
            with on_recording_stream(latent):
                # "thread_local": other threads may allocate and wait during the recording
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    failure = failure_of(lambda: self._fill(decode, latent))
                finally:
                    graph.capture_end()
        if message := message_or_raise(failure):
            raise RuntimeError(message)
        return graph

    def _fill(self, decode: Decode, latent: Tensor) -> None:
        for room, frame in zip(self._frames, decode(latent), strict=True):
            room.copy_(frame)
