"""The sizes of Triton programs: how tokens and channels are split among them."""

import torch
import triton
from torch import Tensor

PART = 1024
"""The number of channels in one step of a program that processes tokens in parts."""
MAX_WIDTH = 1024
"""The maximum number of channels in one step of a program that processes full tokens."""
WARP = 32  # threads


def in_two(dim: int, of_a_warp: int) -> dict[str, int]:
    """Return the launch sizes FIRST and SECOND (powers of two that cover `dim` channels) and num_warps of a program for
    a full token. `of_a_warp` is the wanted channels per warp."""
    first = triton.next_power_of_2(dim) // 2
    second = max(triton.next_power_of_2(dim - first), min(first, 4 * WARP))
    # No channel has two warps: in place, one of them could read the other's result instead of the input.
    warps = min(max(4, min(16, (first + second) // of_a_warp)), max(1, second // WARP))
    return {"FIRST": first, "SECOND": second, "num_warps": 1 << (warps.bit_length() - 1)}


def token_by_token(dim: int) -> dict[str, int]:
    """Return the launch sizes FIRST, SECOND, WIDTH (channels of one step) and num_warps of a program that processes
    full tokens one after the other."""
    sizes = in_two(dim, 320)
    width = min(MAX_WIDTH, sizes["SECOND"])
    return {**sizes, "WIDTH": width, "num_warps": max(1, width // (4 * WARP))}


def programs(x: Tensor, sizes: dict[str, int], at_once: int) -> int:
    """Return the number of programs that process x [tokens, dim] at the same time. `at_once` is how many a
    multiprocessor (SM) runs, if the registers suffice."""
    if x.device.type != "cuda":
        return min(len(x), 2)
    each = 1 if sizes["WIDTH"] == MAX_WIDTH else at_once
    return min(len(x), each * torch.cuda.get_device_properties(x.device).multi_processor_count)


def parts_of(x: Tensor) -> tuple[int]:
    """Return the grid of a kernel on x [tokens, dim] with one program for every PART channels of a token."""
    return (len(x) * triton.cdiv(x.shape[1], PART),)
