"""CUDA graphs played on the CPU: operations are recorded by torch's dispatcher and repeated on the same memory.

`missed()` hides operations from a recording, as kernels on another stream are hidden from a real one: they run at once,
on inputs that were not computed yet, and never in a replay."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class PlayedGraph(TorchDispatchMode):
    """Stands in for torch.cuda.CUDAGraph. While recording, results are filled with numbers that mean nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = []

    def capture_begin(self, *_pool: object, **_options: object) -> None:
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def replay(self) -> None:
        for function, arguments, options, outs in self._steps:
            for out, new in zip(outs, _tensors(function(*arguments, **options)), strict=True):
                if not _same_memory(out, new):
                    out.copy_(new)

    def __torch_dispatch__(self, function, _types, arguments=(), options=None):
        options = options or {}
        inputs = _tensors((arguments, options))
        kept = [tensor.clone() for tensor in inputs]
        result = function(*arguments, **options)
        self._steps.append((function, arguments, options, _tensors(result)))
        for tensor, before in zip(inputs, kept, strict=True):
            if not torch.equal(tensor, before):
                tensor.copy_(before)  # a recording computes nothing
        for out in _tensors(result):
            if out.is_floating_point() and not any(_overlap(out, tensor) for tensor in inputs):
                out.fill_(0.5)
        return result


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@contextmanager
def missed():
    """Operations inside run at once and are in no recording."""
    with _disable_current_modes():
        yield


@pytest.fixture
def played_graphs(monkeypatch):
    """Recordings work on the CPU."""
    stream = SimpleNamespace(wait_stream=lambda _other: None)
    for name, stand_in in {
        "CUDAGraph": PlayedGraph,
        "graph_pool_handle": lambda: None,
        "Stream": lambda *_device, **_options: stream,
        "current_stream": lambda _device=None: stream,
        "stream": lambda _stream: nullcontext(),
        "synchronize": lambda _device=None: None,
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
