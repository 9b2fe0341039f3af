"""The sizes of Triton programs: how tokens and channels are split among them."""

import torch
import triton
from torch import Tensor

PART = 1024
"""The number of channels of one token that a Triton program processes at a time."""
MAX_WIDTH = 1024
"""The maximum number of channels of a token that the threads of a Triton program process at a time."""
WARP = 32  # threads


def token_sizes(dim: int, channels_per_warp: int) -> dict[str, int]:
    """Return the launch sizes of a Triton program that processes all `dim` channels of a token. FIRST and SECOND are
    powers of two with a sum of at least `dim`. num_warps is chosen for about `channels_per_warp` channels per warp."""
    first = triton.next_power_of_2(dim) // 2
    second = max(triton.next_power_of_2(dim - first), min(first, 4 * WARP))
    # No channel has two warps: in place, one of them could read the other's result instead of the input.
    warps = min(max(4, min(16, (first + second) // channels_per_warp)), max(1, second // WARP))
    return {"FIRST": first, "SECOND": second, "num_warps": 1 << (warps.bit_length() - 1)}


def token_loop_sizes(dim: int) -> dict[str, int]:
    """Return the launch sizes of a Triton program that processes one token after the other, each with `dim` channels.

    FIRST, SECOND: powers of two with a sum of at least `dim`.
    WIDTH: the number of channels that the threads process at a time.
    num_warps: the number of warps, for four adjacent channels per thread.
    """
    sizes = token_sizes(dim, 320)
    width = min(MAX_WIDTH, sizes["SECOND"])
    return {**sizes, "WIDTH": width, "num_warps": max(1, width // (4 * WARP))}


def program_count(x: Tensor, sizes: dict[str, int], per_multiprocessor: int) -> int:
    """Return the number of Triton programs to launch for x [tokens, dim]: as many as run in parallel, but at most one
    per token. A multiprocessor (SM) runs `per_multiprocessor` programs, but only one if sizes["WIDTH"] is MAX_WIDTH."""
    if x.device.type != "cuda":
        return min(len(x), 2)
    each = 1 if sizes["WIDTH"] == MAX_WIDTH else per_multiprocessor
    return min(len(x), each * torch.cuda.get_device_properties(x.device).multi_processor_count)


def part_grid(x: Tensor) -> tuple[int]:
    """Return the grid of a kernel on x [tokens, dim]: ceil(dim / PART) programs for each token."""
    return (len(x) * triton.cdiv(x.shape[1], PART),)
