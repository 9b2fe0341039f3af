"""The speed of a GPU in TFLOP/s for each operation of the models, measured with the chosen kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .card import card_of
from .table import Work, candidates
from .trials import KERNEL_FUNCTIONS, KERNEL_TESTS, PREQUANTIZED, Size, chosen, seconds_of

DECODING = Size(232, 0, 192, 192)
PROCESSOR = Size(256, 0, 1536, 1536)


def _sizes(product: Size, attention: Size) -> dict[Work, Size]:
    of_products: dict[Work, Size] = dict.fromkeys(("linear", "int8", "fp8"), product)
    return {**of_products, "attention": attention, "attention-8bit": attention}


SIZES: dict[Work, Size] = {
    **_sizes(Size(6032, 0, 1536, 8960), Size(6032, 27144, 1536)),
    "convolution": DECODING,
}
"""The sizes with which each operation of the 1.3B model is timed."""
LARGE_SIZES = _sizes(Size(6032, 0, 5120, 13824), Size(6032, 27144, 5120))
"""The input sizes for timing the 14B model: the first Size is for matrix products, the second for attention."""
TIMES = 5


class Rate(NamedTuple):
    """The chosen kernel for an operation, and its speed in TFLOP/s.

    name: None if no kernel passes the accuracy test.
    tflops: None if no kernel passes or the timing fails.
    """

    name: str | None
    tflops: float | None


def rates(device: torch.device, sizes: dict[Work, Size] = SIZES) -> dict[Work, Rate]:
    """Return the Rate of each operation in `sizes` for which `table.TABLE` has a kernel for the GPU."""
    return {work: rate(work, device, size) for work, size in sizes.items() if candidates(work, card_of(device))}


def rate(work: Work, device: torch.device, size: Size) -> Rate:
    """Return the chosen kernel and its speed at a size. For kernels in `trials.PREQUANTIZED`, the conversion to 8 bits
    is not timed."""
    name = chosen(work, device, size)
    if name is None:
        return Rate(None, None)
    with torch.no_grad():
        seconds = seconds_of(_call(work, name, KERNEL_TESTS[work].make(device, size)), device, TIMES)
    return Rate(name, None if seconds is None else operations(work, size) / seconds / 1e12)


def _call(work: Work, name: str, arguments: tuple[Any, ...]) -> Callable[[], Tensor]:
    alone = PREQUANTIZED.get((work, name))
    return partial(KERNEL_FUNCTIONS[work, name], *arguments) if alone is None else alone(*arguments)


def rate_of_processor() -> Rate:
    """Return the CPU's speed for fp32 matrix products."""
    device = torch.device("cpu")
    x, weight = torch.ones(PROCESSOR.rows, PROCESSOR.dim), torch.ones(PROCESSOR.out, PROCESSOR.dim)
    seconds = seconds_of(lambda: x @ weight.T, device, TIMES)
    return Rate("torch, fp32", None if seconds is None else operations("linear", PROCESSOR) / seconds / 1e12)


def operations(work: Work, size: Size) -> float:
    """Return the floating-point operations of one call of `work`. A multiply-add counts as two."""
    if work.startswith("attention"):
        return 4.0 * size.rows * size.keys * size.dim
    if work == "convolution":  # 3 frames of 3 x 3 pixels, for a map of `rows` lines and a quarter more columns
        return 2.0 * 27 * size.dim * size.out * size.rows * (size.rows * 5 // 4 + 4)
    return 2.0 * size.rows * size.dim * size.out
