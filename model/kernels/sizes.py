"""The sizes of Triton programs: how tokens and channels are split among them."""

import torch
import triton
from torch import Tensor

PART = 1024
"""The number of channels that a program processes at once if a token is split in parts."""
MOST_WIDTH = 1024
"""The maximum number of channels that a program processes at once if it handles one token after the other."""
WARP = 32
"""The number of threads of a warp."""


def in_two(dim: int, of_a_warp: int) -> dict[str, int]:
    """Return the launch sizes FIRST, SECOND and num_warps of a program that processes a full token of `dim` channels.

    The channels are split into FIRST and SECOND, two powers of two with a sum of little more than dim. With a single
    power of two, half of the threads could be idle on padding. `of_a_warp` is the wanted number of channels for each
    warp.

    The number of warps is limited, so that no channel belongs to two warps. Otherwise one warp could read and change a
    result that another warp has already stored.
    """
    first = triton.next_power_of_2(dim) // 2
    second = max(triton.next_power_of_2(dim - first), min(first, 4 * WARP))
    warps = min(max(4, min(16, (first + second) // of_a_warp)), max(1, second // WARP))
    return {"FIRST": first, "SECOND": second, "num_warps": 1 << (warps.bit_length() - 1)}


def token_by_token(dim: int) -> dict[str, int]:
    """Return the launch sizes of a program that processes several tokens of `dim` channels one after the other.

    FIRST and SECOND are as in `in_two`. The program processes WIDTH channels at once, four for each thread.
    """
    sizes = in_two(dim, 320)
    width = min(MOST_WIDTH, sizes["SECOND"])
    return {**sizes, "WIDTH": width, "num_warps": max(1, width // (4 * WARP))}


def programs(x: Tensor, sizes: dict[str, int], at_once: int) -> int:
    """Return the number of programs to launch for x [tokens, dim], if each program processes several tokens.

    The result is the number of programs that the GPU can run at the same time, or the number of tokens if smaller.
    `sizes` is the result of `token_by_token`. If WIDTH is MOST_WIDTH, a multiprocessor (SM) runs one program, because
    the program fills the registers. Otherwise an SM runs `at_once` programs.
    """
    if x.device.type != "cuda":
        return min(len(x), 2)
    each = 1 if sizes["WIDTH"] == MOST_WIDTH else at_once
    return min(len(x), each * torch.cuda.get_device_properties(x.device).multi_processor_count)


def parts_of(x: Tensor) -> tuple[int]:
    """Return the grid of a kernel on x [tokens, dim] with one program for every PART channels of a token."""
    return (len(x) * triton.cdiv(x.shape[1], PART),)
