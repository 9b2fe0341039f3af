"""A Triton kernel that multiplies matrices in registers, to measure a GPU's tensor cores."""

import triton
import triton.language as tl


@triton.jit
def multiply(x_ptr, out_ptr, loops, SUMS: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Add `loops` times the product [TILE, TILE] of x [TILE, DEPTH] with itself, transposed, in the dtype SUMS."""
    rows, columns = tl.arange(0, TILE), tl.arange(0, DEPTH)
    x = tl.load(x_ptr + rows[:, None] * DEPTH + columns[None, :])
    w = tl.load(x_ptr + rows[None, :] * DEPTH + columns[:, None])
    total = tl.zeros((TILE, TILE), SUMS)
    for _ in range(loops):
        total = tl.dot(x, w, total, out_dtype=SUMS)
    tl.store(out_ptr + rows[:, None] * TILE + rows[None, :], total.to(tl.float32))


SUMS = {"fp16, sums in fp32": tl.float32, "fp16, sums in fp16": tl.float16, "int8": tl.int32}
