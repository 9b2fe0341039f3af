"""CUDA graphs of a causal model's forward, so that the GPU does not wait for Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..cache import CameraCache, Pair
from ..forward import ForwardInputs, ForwardOptions
from ..kv.cache import KeyValueCache
from ..parallel import ParallelShare
from .capture import ONE_AT_A_TIME, failure_of, message_or_raise, on_recording_stream
from .trial import refusal, relative_error

Compute = Callable[[ForwardInputs, ForwardOptions], Tensor]
"""The function whose kernels are recorded as CUDA graphs: (inputs, options) -> result. The function may fill the camera
cache, but must have no other side effect."""


class _Recording:
    """A forward's CUDA graphs, functions to call between the graphs, and the cached tensors that the graphs fill."""

    filled: tuple[Mapping[int, Pair], Mapping[int, Pair]] | None

    def __init__(self, pool: Any, out: Tensor) -> None:
        self._pool, self.out = pool, out
        self._steps: list[Callable[[], object]] = []

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads may allocate and wait during the recording
        self._graph.capture_begin(self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self._graph.capture_end()
        self._steps.append(self._graph.replay)

    def run_between_graphs(self, *actions: Callable[[], object]) -> None:
        self.end()
        self._steps += actions
        self.begin()

    def replay(self) -> None:
        for step in self._steps:
            step()


class ForwardGraphs:
    """The CUDA graphs of one video's forwards. Pass this object to the model as `options["graphs"]`.

    Weights must stay on the GPU at the same addresses. `KeyValueCache.is_read_directly` must be True, and a CameraCache
    must be `steady`. A change of `options["weights"]` frees all graphs.
    """

    def __init__(self) -> None:
        self._recordings: dict[Hashable, _Recording] = {}
        self._inputs: dict[Hashable, ForwardInputs] = {}
        self._seen: dict[Hashable, Tensor] = {}  # preallocated memory for the result of a forward of each kind
        self._weights: Hashable = None
        self._failed = False

    @property
    def recorded(self) -> int:
        """The number of recorded forwards."""
        return len(self._recordings)

    def clear(self) -> int:
        """Wait for the GPU, and free all graphs. Return the size in bytes of the graphs' input and result tensors."""
        tensors = [tensor for own in self._inputs.values() for tensor in own.tensors]
        if self._recordings:
            with suppress(RuntimeError):  # a failed GPU runs nothing
                torch.cuda.synchronize(tensors[0].device)  # else torch could unmap the memory of a running graph
        freed = sum(tensor.nbytes for tensor in (*tensors, *(each.out for each in self._recordings.values())))
        self._recordings, self._inputs, self._seen = {}, {}, {}
        self.__dict__.pop("_pool", None)  # torch does not reuse a pool after all its recordings are freed
        return freed

    def run(self, compute: Compute, given: ForwardInputs, options: ForwardOptions) -> Tensor:
        """Return `compute(given, options)` as a new tensor. Forwards with the same kernels and tensor addresses share a
        recording: the first runs as usual, the second is recorded and tested, later ones are replayed. If recording or
        test fails, forwards run as usual."""
        history = options["kv_cache"]
        if self._failed or history.window_state is None:
            return compute(given, options)
        if self._weights != (weights := options.get("weights")):
            self.clear()
            self._weights = weights
        kind = _kind(given, history)
        if kind in self._recordings:
            return self._replay(self._recordings[kind], given)
        if kind in self._seen:
            return self._record_and_try(kind, compute, given, options)
        out = compute(given, options)
        self._inputs.setdefault(given.shapes, given.clone())
        self._seen[kind] = torch.empty_like(out)
        return out

    def _replay(self, recording: _Recording, given: ForwardInputs) -> Tensor:
        self._queue(recording, given)
        if (cache := _cache_of(given)) is not None and recording.filled is not None:
            cache.take(recording.filled[0])
            cache.prompt.take(recording.filled[1])
            cache.mark_read()
        return recording.out.clone()

    def _queue(self, recording: _Recording, given: ForwardInputs) -> None:
        for own, tensor in zip(self._inputs[given.shapes].tensors, given.tensors, strict=True):
            own.copy_(tensor)
        recording.replay()

    def _record_and_try(
        self, kind: Hashable, compute: Compute, given: ForwardInputs, options: ForwardOptions
    ) -> Tensor:
        share = options.get("token_share")
        if not self._recordings:
            torch.cuda.empty_cache()  # a recording cannot use the memory that torch has cached
        recording = _Recording(self._pool, self._seen.pop(kind))
        with ONE_AT_A_TIME:
            reason = self._record(recording, compute, given, options)
        if reason:
            reason = f"A forward cannot be recorded as a CUDA graph, and runs as usual: {reason}"
        if not _all_agree(share, not reason):
            self._drop(reason)
            return compute(given, options)
        self._queue(recording, given)
        out = compute(given, options)
        reason = refusal("A forward", relative_error([recording.out], [out]))
        if _all_agree(share, not reason):
            self._recordings[kind] = recording
        else:
            self._drop(reason)
        return out

    def _drop(self, reason: str) -> None:
        if reason:
            logging.warning("%s", reason)
        self._failed = True
        self.clear()

    def _record(self, recording: _Recording, compute: Compute, given: ForwardInputs, options: ForwardOptions) -> str:
        """Record a forward's kernels. Return the reason of a failure, or an empty string."""
        fixed, cache, share = self._inputs[given.shapes], _cache_of(given), options.get("token_share")
        if fixed.camera is not None:
            fixed = fixed._replace(camera=replace(fixed.camera, cache=cache))
        failure: BaseException | None = None
        try:
            with (
                on_recording_stream(given.x),
                _valid_for(cache, fixed.context),
                nullcontext() if share is None else share.parallel.exchanges.recorded_by(recording.run_between_graphs),
            ):
                recording.begin()
                try:
                    failure = self._fill(recording, compute, fixed, options)
                finally:
                    recording.end()
        except RuntimeError as reason:
            failure = failure or reason
        return message_or_raise(failure)

    def _fill(
        self, recording: _Recording, compute: Compute, fixed: ForwardInputs, options: ForwardOptions
    ) -> BaseException | None:
        cache = _cache_of(fixed)
        # else the cache would refer to the memory of a failed recording
        with nullcontext() if cache is None else cache.restored():
            failure = failure_of(lambda: recording.out.copy_(compute(fixed, options)))
            recording.filled = None if cache is None or failure else (cache.kept, cache.prompt.kept)
        return failure

    @cached_property
    def _pool(self) -> Any:
        """The memory pool that all graphs share, because no two graphs are replayed at the same time."""
        return torch.cuda.graph_pool_handle()


def _all_agree(share: ParallelShare | None, fine: bool) -> bool:
    return fine if share is None else share.parallel.all_agree(fine)


def _cache_of(given: ForwardInputs) -> CameraCache | None:
    return None if given.camera is None else given.camera.cache


def _kind(given: ForwardInputs, history: KeyValueCache) -> Hashable:
    """Return a key of the forward. Forwards with equal keys run the same kernels on the same memory."""
    cache = _cache_of(given)
    kept = None if cache is None else (cache.addresses, cache.prompt.addresses)
    return given.shapes, history.window_state, history.keep, kept


@contextmanager
def _valid_for(cache: CameraCache | None, context: Tensor) -> Iterator[None]:
    """Temporarily make `context`, the graphs' copy of the embedded prompt, the cache's embedded prompt. Without this,
    blocks would not use the cached keys and values. Do nothing if no prompt is cached."""
    if cache is None or cache.prompt.embedded is None:
        yield
        return
    own, cache.prompt.embedded = cache.prompt.embedded, context
    try:
        yield
    finally:
        cache.prompt.embedded = own
