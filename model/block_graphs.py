"""CUDA graphs of a causal model's blocks: the GPU repeats recorded kernels, without Python between them.

A chunk's forwards run the same kernels on the same memory; only their inputs differ. Where a GPU is done before Python
has asked for the next kernel, because several GPUs share a chunk or the video is small, replaying a recording is
faster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .forward import Camera, ForwardOptions, Rope
from .kv_cache import KeyValueCache

Blocks = Callable[[Tensor, Tensor, Tensor, "Camera | None", Rope, ForwardOptions], Tensor]
"""(x, e0, context, camera, rope, options) -> x after all blocks. Arguments as in `Block.forward`; writes over x."""


@dataclass(frozen=True)
class _Inputs:
    """What the blocks read, in memory that the graphs know."""

    x: Tensor
    e0: Tensor
    context: Tensor
    camera: Camera | None
    rope: Rope

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x, self.e0, self.context, *self.rope, *([] if self.camera is None else [self.camera.tokens])]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        return tuple(tensor.shape for tensor in self.tensors)

    def clone(self) -> _Inputs:
        """The same in other memory."""
        cos, sin = self.rope
        camera = None if self.camera is None else replace(self.camera, tokens=self.camera.tokens.clone())
        return _Inputs(self.x.clone(), self.e0.clone(), self.context.clone(), camera, (cos.clone(), sin.clone()))


class _Recording:
    """The kernels of a forward as CUDA graphs, and what was done between two of them, in order."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
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


class BlockGraphs:
    """The recordings of one video; give it to the model as `options["block_graphs"]`.

    Only for a model whose weights all stay where they are on a GPU, beside a KeyValueCache in the compute dtype on that
    GPU and, if any, a CameraCache that is `steady`. A forward in a state that was not seen before runs as usual, the
    next one in that state is recorded, and those after it are replayed. The state is the slots of the running chunk and
    the addresses of what the caches hold. Where several processes compute together, what they exchange is not recorded:
    a replay starts and awaits each exchange between two graphs. If a recording fails, later forwards run as usual."""

    def __init__(self) -> None:
        self._recordings: dict[Hashable, _Recording] = {}
        self._inputs: dict[Hashable, _Inputs] = {}
        self._seen: Hashable = None
        self._failed = False

    @property
    def recorded(self) -> int:
        """How many states were recorded."""
        return len(self._recordings)

    def run(
        self, blocks: Blocks, x: Tensor, e0: Tensor, context: Tensor, camera: Camera | None, rope: Rope,
        options: ForwardOptions,
    ) -> Tensor:  # fmt: skip
        """The residual stream x [1, tokens, dim] after all blocks. A replay returns memory that the next one writes
        over."""
        given, history = _Inputs(x, e0, context, camera, rope), options["kv_cache"]
        state = _state(given, history)
        if not self._failed and state == self._seen and state not in self._recordings:
            self._record(state, blocks, given, options)
        if state not in self._recordings:
            x = blocks(x, e0, context, camera, rope, options)
            self._seen = _state(given, history)  # this forward may have filled the caches
            return x
        if camera is not None and camera.cache is not None:
            camera.cache.mark_read()
        fixed = self._inputs[given.shapes]
        for own, tensor in zip(fixed.tensors, given.tensors, strict=True):
            own.copy_(tensor)
        self._recordings[state].replay()
        return fixed.x

    def _record(self, state: Hashable, blocks: Blocks, given: _Inputs, options: ForwardOptions) -> None:
        """Nothing is computed meanwhile. All recordings share their working memory: no two are replayed at once."""
        fixed = self._inputs.setdefault(given.shapes, given.clone())
        recording, share = _Recording(self._pool), options.get("token_share")
        self._stream.wait_stream(torch.cuda.current_stream(given.x.device))
        try:
            with (
                torch.cuda.stream(self._stream),
                _prompt_of(given.camera, fixed.context),
                nullcontext() if share is None else share.recorded_by(recording.between),
            ):
                recording.begin()
                try:
                    blocks(fixed.x, fixed.e0, fixed.context, _with_cache_of(given, fixed), fixed.rope, options)
                finally:
                    recording.end()
        except RuntimeError as reason:
            logging.warning("The blocks cannot be recorded as a CUDA graph, and run as usual: %s", reason)
            self._failed = True
            return
        self._recordings[state] = recording

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()


def _state(given: _Inputs, history: KeyValueCache) -> Hashable:
    cache = None if given.camera is None else given.camera.cache
    kept = None if cache is None else (cache.addresses, cache.prompt.addresses)
    return given.shapes, history.slots, kept


def _with_cache_of(given: _Inputs, fixed: _Inputs) -> Camera | None:
    if given.camera is None or fixed.camera is None:
        return None
    return replace(fixed.camera, cache=given.camera.cache)


@contextmanager
def _prompt_of(camera: Camera | None, context: Tensor) -> Iterator[None]:
    """The blocks know by the embedded prompt whether they may use the cached keys and values: here it is `context`."""
    cache = None if camera is None or camera.cache is None else camera.cache.prompt
    if cache is None or cache.embedded is None:
        yield
        return
    own, cache.embedded = cache.embedded, context
    try:
        yield
    finally:
        cache.embedded = own
