"""How the Triton kernels' programs divide tokens and channels among themselves."""

import torch
import triton
from torch import Tensor

PART = 1024
"""Channels that a program takes at once."""
MOST_WIDTH = 1024
"""Channels that a program takes at once, where it takes one token after the other."""
WARP = 32
"""Threads."""


def in_two(dim: int, of_a_warp: int) -> dict[str, int]:
    """How a program takes a token whole: as FIRST and SECOND channels, powers of two, which together are little more
    than dim. Of one power of two up to half would be empty, and its threads wait for the others.

    No channel is two warps': what one of them has stored the other would read and add to once more."""
    first = triton.next_power_of_2(dim) // 2
    second = max(triton.next_power_of_2(dim - first), min(first, 4 * WARP))
    warps = min(max(4, min(16, (first + second) // of_a_warp)), max(1, second // WARP))
    return {"FIRST": first, "SECOND": second, "num_warps": 1 << (warps.bit_length() - 1)}


def token_by_token(dim: int) -> dict[str, int]:
    """How a program that takes several tokens takes each: FIRST and SECOND channels, as `in_two` has them, WIDTH of
    them at once, four a thread."""
    sizes = in_two(dim, 320)
    width = min(MOST_WIDTH, sizes["SECOND"])
    return {**sizes, "WIDTH": width, "num_warps": max(1, width // (4 * WARP))}


def programs(x: Tensor, sizes: dict[str, int], at_once: int) -> int:
    """How many take the tokens of x: as many as a GPU runs at once. That is one a multiprocessor, whose registers it
    fills, or `at_once` if they take fewer channels than MOST_WIDTH at once."""
    if x.device.type != "cuda":
        return min(len(x), 2)
    each = 1 if sizes["WIDTH"] == MOST_WIDTH else at_once
    return min(len(x), each * torch.cuda.get_device_properties(x.device).multi_processor_count)


def parts_of(x: Tensor) -> tuple[int]:
    """How many programs a kernel has that computes PART channels of a token in each."""
    return (len(x) * triton.cdiv(x.shape[1], PART),)
