"""Selection of the code that runs an operation of ops/pointwise.py: our kernel, or plain torch."""

import logging
import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial, wraps
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...options import T
from ..choice.table import TRITON, settings, triton_loads
from ..choice.trials import KERNEL_TESTS, KernelTest, Size, register_kernel
from . import matrix_8bit, plain
from .plain import NormRope

VARIABLE = "LINGBOT_POINTWISE"
MODES = "auto", "triton", "compile", "eager"  # auto: triton if it works, else eager (plain torch by parts)
EAGER_TOKENS = 2048


def slices(length: int, limit: int) -> Iterator[slice]:
    """Return consecutive slices that cover `length` items. All slices have the same length, a multiple of 128; only the
    last may be shorter. A slice exceeds `limit` only if `limit` is no multiple of 128."""
    count = -(-length // limit)
    size = -(-length // count // 128) * 128
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def run(name: str, x: Tensor, *arguments: Any) -> Tensor:
    """Run the operation `name` on x and `arguments`, and return its result. During torch.compile the operation runs in
    plain torch."""
    if torch.compiler.is_compiling():
        return _in_plain_torch(name)(x, *arguments)
    return implementation(name, x.device.type)(x, *arguments)


def _in_plain_torch(name: str) -> Callable[..., Tensor]:
    return getattr(plain, name, None) or getattr(matrix_8bit, name)


@lru_cache
def implementation(name: str, device_type: str, mode: str | None = None) -> Callable[..., Tensor]:
    """Return the function that computes the operation `name` on a device type. Raise InputError if `mode`, by default
    the value of LINGBOT_POINTWISE, is not one of MODES."""
    by_table = "eager" if settings().get("norms") == "torch" else "auto"
    mode, run_plain = mode or os.environ.get(VARIABLE) or by_table, _in_plain_torch(name)
    if mode not in MODES:
        raise InputError(f"{VARIABLE} is {mode}, expected {', '.join(MODES[:-1])} or {MODES[-1]}")
    eager = run_plain if name in _WHOLE else partial(_BY_PARTS.get(name, _in_place_by_parts), run_plain)
    if mode == "compile":
        return or_else(torch.compile(run_plain, dynamic=True), eager, name)
    return eager if mode == "eager" else our_kernel_or(name, eager, device_type)


@lru_cache
def our_kernel_or(name: str, run_plain: Callable[..., T], device_type: str) -> Callable[..., T]:
    """Return a function that runs our kernel `name`. If the kernel fails on a GPU, `run_plain` replaces it there.
    Without CUDA or Triton, return `run_plain`."""
    if device_type != "cuda" or not triton_loads():
        return run_plain
    return or_else(our_kernel(name), run_plain, name)


def our_kernel(name: str) -> Callable[..., Any]:
    """Return the function that launches this package's Triton or CUDA kernel `name`."""
    from ..kernels import add_norm, matrix_8bit, merge, pointwise, scatter_qkv, weights_4bit, weights_blocks
    from ..kernels.hopper import attention

    places = add_norm, scatter_qkv, merge, pointwise, matrix_8bit, weights_4bit, weights_blocks, attention
    return next(getattr(each, name) for each in places if hasattr(each, name))


def _layer_norm_by_parts(run_plain: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    if len(x) <= EAGER_TOKENS:
        return run_plain(x, *arguments)
    out = torch.empty_like(x, dtype=arguments[-1])
    for part in slices(len(x), EAGER_TOKENS):
        out[part] = run_plain(x[part], *arguments)
    return out


def _in_place_by_parts(run_plain: Callable[..., Tensor], x: Tensor, *arguments: Any) -> Tensor:
    if len(x) <= EAGER_TOKENS:
        return run_plain(x, *arguments)
    for part in slices(len(x), EAGER_TOKENS):
        run_plain(x[part], *(_tokens_of(argument, part) for argument in arguments))
    return x


def _scatter_by_parts(outputs: int, run_plain: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Run `run_plain`, a scatter operation in plain torch, on slices of the tokens. Return the first output tensor.

    outputs: the number of output tensors. `arguments` are these tensors, the row indices [tokens], and inputs to slice.
    """
    out, (rows, *others) = arguments[:outputs], arguments[outputs:]
    for part in slices(len(rows), EAGER_TOKENS):
        run_plain(*out, rows[part], *(_tokens_of(argument, part) for argument in others))
    return out[0]


_WHOLE = {"rms_silu", "modulated", "scatter_", "scatter_fp8_", "scatter_transposed_", "merge_", "merge_fp8_"}
"""The operations that plain torch runs on all tokens at once, not on slices. Here slices would save little memory, or
are impossible."""
_BY_PARTS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": _layer_norm_by_parts,
    "scatter_rope_": partial(_scatter_by_parts, 1),
    "scatter_qkv_": partial(_scatter_by_parts, 2),
}


def _tokens_of(argument: Any, part: slice) -> Any:
    if isinstance(argument, tuple):
        parts = (_tokens_of(each, part) for each in argument)
        return NormRope(*parts) if isinstance(argument, NormRope) else tuple(parts)
    return argument[part] if isinstance(argument, Tensor) and argument.ndim == 2 else argument


def or_else(fast: Callable[..., T], plain: Callable[..., T], name: str) -> Callable[..., T]:
    """Return a function that calls `fast`. If `fast` fails on a device, this call and all later ones there use `plain`,
    and `name` is logged. torch.OutOfMemoryError is raised instead."""
    broken: set[torch.device | None] = set()

    def run(*arguments: Any) -> T:
        if not broken or _device_of(arguments) not in broken:
            try:
                return fast(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as reason:
                device = _device_of(arguments)
                broken.add(device)
                logging.warning("%s runs in plain torch on %s, slower: %s", name, device, reason)
        return plain(*arguments)

    return run


def _device_of(argument: Any) -> torch.device | None:
    if isinstance(argument, Tensor):
        return argument.device
    found = (_device_of(each) for each in argument) if isinstance(argument, tuple) else ()
    return next((device for device in found if device is not None), None)


def on_its_gpu(run: Callable[..., T]) -> Callable[..., T]:
    """Return a function that makes the GPU of its first argument the current device, and calls `run`. Kernels of
    comfy-kitchen launch on the current device."""

    @wraps(run)
    def on_gpu(x: Tensor, *others: Any) -> T:
        with torch.cuda.device_of(x):
            return run(x, *others)

    return on_gpu


def _random_norm(device: torch.device, size: Size) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    shapes = (size.rows, size.dim), (size.dim,), (size.dim,)
    x, weight, bias = (torch.randn(shape, device=device, generator=generator) for shape in shapes)
    return x, weight, bias


def _plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return plain.layer_norm(x, weight, bias, 1e-6, x.dtype)


KERNEL_TESTS["norms"] = KernelTest(_random_norm, _plain_norm, 1e-3)
register_kernel("norms", TRITON)(lambda x, weight, bias: our_kernel("layer_norm")(x, weight, bias, 1e-6, x.dtype))
register_kernel("norms", "torch")(_plain_norm)
