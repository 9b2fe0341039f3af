"""Sizes of the Triton kernels' programs: the split of tokens and channels among them."""

import torch
import triton
from torch import Tensor

PART = 1024
"""The number of channels that a program processes at once."""
MOST_WIDTH = 1024
"""The maximum number of channels at once of a program that processes one token after the other."""
WARP = 32
"""The number of threads of a warp."""


def in_two(dim: int, of_a_warp: int) -> dict[str, int]:
    """Return the sizes of a program that processes a full token.

    The channels are split into FIRST and SECOND, powers of two with a sum little above dim. With a single power of two
    up to half of the threads would idle on padding. No channel belongs to two warps, because one would read what the
    other has stored and add to it again."""
    first = triton.next_power_of_2(dim) // 2
    second = max(triton.next_power_of_2(dim - first), min(first, 4 * WARP))
    warps = min(max(4, min(16, (first + second) // of_a_warp)), max(1, second // WARP))
    return {"FIRST": first, "SECOND": second, "num_warps": 1 << (warps.bit_length() - 1)}


def token_by_token(dim: int) -> dict[str, int]:
    """Return the sizes of a program that processes several tokens one after the other.

    FIRST and SECOND as in `in_two`; WIDTH channels are processed at once, four for each thread."""
    sizes = in_two(dim, 320)
    width = min(MOST_WIDTH, sizes["SECOND"])
    return {**sizes, "WIDTH": width, "num_warps": max(1, width // (4 * WARP))}


def programs(x: Tensor, sizes: dict[str, int], at_once: int) -> int:
    """Return the number of programs for the tokens of x: as many as a GPU runs at once.

    A multiprocessor (SM) runs one program, which fills its registers, or `at_once` programs if WIDTH is below
    MOST_WIDTH."""
    if x.device.type != "cuda":
        return min(len(x), 2)
    each = 1 if sizes["WIDTH"] == MOST_WIDTH else at_once
    return min(len(x), each * torch.cuda.get_device_properties(x.device).multi_processor_count)


def parts_of(x: Tensor) -> tuple[int]:
    """Return the grid of a kernel with one program for every PART channels of a token."""
    return (len(x) * triton.cdiv(x.shape[1], PART),)
