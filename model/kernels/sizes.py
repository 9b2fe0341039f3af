"""The sizes of Triton programs: how tokens and channels are split among them."""

import torch
import triton
from torch import Tensor

PART = 1024
"""A program that processes tokens in parts computes this many channels in one step."""
MOST_WIDTH = 1024
"""A program that processes full tokens computes at most this many channels in one step."""
WARP = 32
"""The number of threads of a warp."""


def in_two(dim: int, of_a_warp: int) -> dict[str, int]:
    """Return the launch sizes FIRST, SECOND and num_warps of a program for a full token of `dim` channels. `of_a_warp`
    is the wanted number of channels per warp.

    FIRST and SECOND are powers of two, and their sum is little more than dim. A single power of two could leave half of
    the threads idle. `num_warps` is so small that each channel belongs to one warp only. If two warps computed the same
    channel in place, one of them could read the other's result instead of the input.
    """
    first = triton.next_power_of_2(dim) // 2
    second = max(triton.next_power_of_2(dim - first), min(first, 4 * WARP))
    warps = min(max(4, min(16, (first + second) // of_a_warp)), max(1, second // WARP))
    return {"FIRST": first, "SECOND": second, "num_warps": 1 << (warps.bit_length() - 1)}


def token_by_token(dim: int) -> dict[str, int]:
    """Return the launch sizes of a program that processes several tokens of `dim` channels one after the other: FIRST
    and SECOND as in `in_two`, WIDTH and num_warps. WIDTH is the number of channels in one step, four per thread."""
    sizes = in_two(dim, 320)
    width = min(MOST_WIDTH, sizes["SECOND"])
    return {**sizes, "WIDTH": width, "num_warps": max(1, width // (4 * WARP))}


def programs(x: Tensor, sizes: dict[str, int], at_once: int) -> int:
    """Return the number of programs to launch for x [tokens, dim]: as many as the GPU runs at the same time, but not
    more than there are tokens. Without CUDA, at most 2.

    sizes: the result of `token_by_token`.
    at_once: the number of programs that a multiprocessor (SM) runs at the same time. If WIDTH is MOST_WIDTH, it runs
    only one, because one program then fills the registers.
    """
    if x.device.type != "cuda":
        return min(len(x), 2)
    each = 1 if sizes["WIDTH"] == MOST_WIDTH else at_once
    return min(len(x), each * torch.cuda.get_device_properties(x.device).multi_processor_count)


def parts_of(x: Tensor) -> tuple[int]:
    """Return the grid of a kernel on x [tokens, dim] with one program for every PART channels of a token."""
    return (len(x) * triton.cdiv(x.shape[1], PART),)
