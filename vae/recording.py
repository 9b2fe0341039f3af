"""A latent frame's decoding as a CUDA graph: the GPU repeats recorded kernels, without Python between them.

A latent frame asks a GPU for more kernels than Python launches while it computes them. Replayed, they follow each other
at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.graphs.capture import ONE_AT_A_TIME, failure_of
from ..model.graphs.trial import refusal, relative_error

Decode = Callable[[Tensor], Iterator[Tensor]]
"""The work that is recorded: kernels alone, on memory that stays in place. Returns the frames of a latent frame."""


class Recording:
    """Decodes the latent frames of one video, all of one size, but for the first, which is another kind.

    The first call decodes as usual. The second one records, and tries the recording: a replay of its latent, which
    differs from the recorded one, is compared with the decoding itself. Later calls replay. If recording or the trial
    fails, all calls decode as usual."""

    def __init__(self, state: Callable[[], Sequence[Tensor]] = tuple) -> None:
        """`state` returns the tensors that decoding changes, which a trial has to restore."""
        self._state, self._frames, self._failed = state, list[Tensor](), False
        self._latent: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def made(self) -> bool:
        """Whether there is a recording that passed its trial."""
        return self._graph is not None

    def decode(self, decode: Decode, latent: Tensor) -> Iterator[Tensor]:
        """Return `decode(latent)`, computed or replayed. Replayed frames are valid until the next latent frame."""
        if self._failed:
            return decode(latent)
        if self._latent is None:
            self._latent = latent.clone()
            return self._with_room(decode(latent))
        if self._graph is None:
            return self._record_and_try(decode, latent)
        self._latent.copy_(latent)
        self._graph.replay()
        return iter(self._frames)

    def _with_room(self, frames: Iterator[Tensor]) -> Iterator[Tensor]:
        """Yield the frames; allocate memory for their successors."""
        for frame in frames:
            self._frames.append(torch.empty_like(frame))
            yield frame

    def _record_and_try(self, decode: Decode, latent: Tensor) -> Iterator[Tensor]:
        """Yield `decode(latent)`, and keep the recording if its replay gave the same frames."""
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
        if reason := refusal("The VAE's decoding", max(errors)):
            self._drop(reason)
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
        """Record a latent frame's decoding. The GPU computes nothing meanwhile. Raises RuntimeError."""
        with ONE_AT_A_TIME:
            torch.cuda.empty_cache()  # a recording cannot use torch's reserve
            graph, failure = torch.cuda.CUDAGraph(), ""
            with torch.cuda.stream(_stream(latent.device)):
                one = latent.new_ones(8, 8)
                F.linear(one, one, one[0])  # cuBLAS's memory for this thread and stream outlives the recording
                # other threads may allocate and wait meanwhile: "thread_local"
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    failure = failure_of(lambda: self._fill(decode, latent))
                finally:
                    graph.capture_end()
        if failure:
            raise RuntimeError(failure)
        return graph

    def _fill(self, decode: Decode, latent: Tensor) -> None:
        """Copy the frames to where each replay leaves them."""
        for room, frame in zip(self._frames, decode(latent), strict=True):
            room.copy_(frame)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all recordings of a GPU, because cuBLAS keeps memory for each stream that it has worked on."""
    return torch.cuda.Stream(device)
