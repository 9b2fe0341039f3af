"""CUDA graphs of a causal model's forward: the GPU repeats recorded kernels, without Python between them.

A chunk's forwards run the same kernels on the same memory; only their inputs differ. Where the chunk is small, the
processor slow, or several GPUs share a chunk, a GPU is done before Python has asked for the next kernel. Replaying a
recording is faster then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..cache import CameraCache, Pair
from ..forward import ForwardInputs, ForwardOptions
from ..kv.cache import KeyValueCache
from .capture import ONE_AT_A_TIME, failure_of

Compute = Callable[[ForwardInputs, ForwardOptions], Tensor]
"""What is recorded: kernels alone, whose Python does nothing else but fill the camera cache."""


class _Recording:
    """The kernels of a forward as CUDA graphs, and what was done between two of them, in order. `out` is what they
    compute: it was allocated before, since CUDA's own allocator warns when what a recording has allocated is freed.
    `filled`: what they put into the camera cache."""

    filled: tuple[Mapping[int, Pair], Mapping[int, Pair]] | None

    def __init__(self, pool: Any, out: Tensor) -> None:
        self._pool, self.out = pool, out
        self._steps: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Kernels are recorded from now on, and not run."""
        self._graph = torch.cuda.CUDAGraph()
        # other threads may allocate and wait meanwhile: "thread_local"
        self._graph.capture_begin(self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self._graph.capture_end()
        self._steps.append(self._graph.replay)

    def between(self, *actions: Callable[[], object]) -> None:
        """These are called in every replay between the kernels before and the kernels after."""
        self.end()
        self._steps += actions
        self.begin()

    def replay(self) -> None:
        for step in self._steps:
            step()


class ForwardGraphs:
    """The recordings of one video; give it to the model as `options["graphs"]`.

    Only for a model whose weights all stay where they are on a GPU, beside a KeyValueCache that is `in_place` there
    and, if any, a CameraCache that is `steady`. The first forward of a kind runs as usual, the second one is recorded,
    and later ones are replayed. Of a chunk's forwards there are three kinds: the first one, which computes the camera's
    scales and shifts, those that read them, and the clean one. While the window fills there are three others, or none
    where attention does not attend to frames: each chunk sees more tokens then than the one before.

    A host that moves weights gives `options["weights"]`: what is recorded with others is dropped.

    Where several processes compute together, what they exchange is not recorded: a replay starts and awaits each
    exchange between two graphs. If a recording fails, later forwards run as usual."""

    def __init__(self) -> None:
        self._recordings: dict[Hashable, _Recording] = {}
        self._inputs: dict[Hashable, ForwardInputs] = {}
        self._seen: dict[Hashable, Tensor] = {}  # memory for what such a forward computes
        self._weights: Hashable = None
        self._failed = False

    @property
    def recorded(self) -> int:
        """How many kinds of forwards were recorded."""
        return len(self._recordings)

    def clear(self) -> int:
        """Free all recordings; returns how many bytes they had read and given."""
        tensors = [tensor for own in self._inputs.values() for tensor in own.tensors]
        freed = sum(tensor.nbytes for tensor in (*tensors, *(each.out for each in self._recordings.values())))
        self._recordings, self._inputs, self._seen = {}, {}, {}
        self.__dict__.pop("_pool", None)  # torch does not take a pool again whose recordings are all gone
        return freed

    def run(self, compute: Compute, given: ForwardInputs, options: ForwardOptions) -> Tensor:
        """`compute(given, options)`, computed or replayed."""
        history = options["kv_cache"]
        if self._failed or history.form is None:
            return compute(given, options)
        if self._weights != (weights := options.get("weights")):
            self.clear()
            self._weights = weights
        kind = _kind(given, history)
        if kind in self._seen and kind not in self._recordings:
            with ONE_AT_A_TIME:
                self._record(kind, compute, given, options)
        if kind not in self._recordings:
            out = compute(given, options)
            self._seen[kind] = torch.empty_like(out)
            return out
        recording = self._recordings[kind]
        for own, tensor in zip(self._inputs[given.shapes].tensors, given.tensors, strict=True):
            own.copy_(tensor)
        recording.replay()
        if (cache := _cache_of(given)) is not None and recording.filled is not None:
            cache.take(recording.filled[0])
            cache.prompt.take(recording.filled[1])
            cache.mark_read()
        return recording.out.clone()

    def _record(self, kind: Hashable, compute: Compute, given: ForwardInputs, options: ForwardOptions) -> None:
        """Nothing is computed meanwhile. All recordings share their working memory: no two are replayed at once. What
        torch holds in reserve goes back before: they do not take from it."""
        if not self._recordings:
            torch.cuda.empty_cache()
        fixed = self._inputs.setdefault(given.shapes, given.clone())
        recording, share = _Recording(self._pool, self._seen.pop(kind)), options.get("token_share")
        cache = _cache_of(given)
        if fixed.camera is not None:
            fixed = fixed._replace(camera=replace(fixed.camera, cache=cache))
        self._stream.wait_stream(torch.cuda.current_stream(given.x.device))
        try:
            with (
                torch.cuda.stream(self._stream),
                _prompt_of(cache, fixed.context),
                nullcontext() if share is None else share.recorded_by(recording.between),
            ):
                recording.begin()
                try:
                    failure = failure_of(lambda: recording.out.copy_(compute(fixed, options)))
                finally:
                    recording.end()
            if failure:
                raise RuntimeError(failure)
        except RuntimeError as reason:
            logging.warning("A forward cannot be recorded as a CUDA graph, and runs as usual: %s", reason)
            self._failed = True
            if cache is not None:
                cache.clear()  # what a recording filled was never computed
            return
        recording.filled = None if cache is None else (cache.kept, cache.prompt.kept)
        self._recordings[kind] = recording

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()


def _cache_of(given: ForwardInputs) -> CameraCache | None:
    return None if given.camera is None else given.camera.cache


def _kind(given: ForwardInputs, history: KeyValueCache) -> Hashable:
    """Forwards of the same kind run the same kernels on the same memory."""
    cache = _cache_of(given)
    kept = None if cache is None else (cache.addresses, cache.prompt.addresses)
    return given.shapes, history.form, history.keep, kept


@contextmanager
def _prompt_of(cache: CameraCache | None, context: Tensor) -> Iterator[None]:
    """The blocks know by the embedded prompt whether they may use the cached keys and values: here it is `context`."""
    if cache is None or cache.prompt.embedded is None:
        yield
        return
    own, cache.prompt.embedded = cache.prompt.embedded, context
    try:
        yield
    finally:
        cache.prompt.embedded = own
