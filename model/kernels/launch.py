"""The launch of Triton kernels, which CUDA graphs can also record with torch's allocator backend cudaMallocAsync."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

ON_GPU = torch.cuda.is_available()  # otherwise Triton interprets
ASYNC_MALLOC = "cudaMallocAsync"
"""torch's name for the allocator backend of CUDA's own memory pools."""


class Kernel:
    """A Triton kernel, launched as `kernel[grid](*arguments)`. A CUDA graph can record the launch."""

    def __init__(self, function: Callable[..., None], unspecialized: Sequence[str] = ()) -> None:
        """Create a kernel from a Triton function. New values of `unspecialized` parameters do not recompile it."""
        self._triton: Any = triton.jit(function, do_not_specialize=list(unspecialized))
        self._signature = inspect.signature(function)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        if ON_GPU and torch.cuda.is_current_stream_capturing() and torch.cuda.get_allocator_backend() == ASYNC_MALLOC:
            return partial(self._launch, (*grid, 1, 1)[:3])
        launch: Callable[..., object] = self._triton[grid]
        return launch

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        compiled = self._triton.warmup(*arguments, grid=grid, **options)  # cached if already compiled
        own = {name: value for name, value in options.items() if name in self._signature.parameters}
        bound = self._signature.bind(*arguments, **own).arguments.values()
        # Integers, because Triton refuses addresses of tensors that are only valid in replays.
        compiled[grid](*(each.data_ptr() if isinstance(each, Tensor) else each for each in bound))
