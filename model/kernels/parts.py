"""Helpers shared by Triton kernels. A program computes either a block of a token's channels, or a full token in two
blocks."""

import triton
import triton.language as tl


@triton.jit
def _part(dim, BLOCK: tl.constexpr):
    """Return this program's token, its BLOCK channels and their mask (channel < dim)."""
    parts = tl.cdiv(dim, BLOCK)
    cols = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    return (tl.program_id(0) // parts).to(tl.int64), cols, cols < dim


@triton.jit
def _channels(START: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Return SIZE channel indices from START on, as [SIZE / WIDTH, WIDTH]. All threads together process WIDTH channels
    at a time, four adjacent ones each."""
    columns = tl.max_contiguous(tl.arange(0, WIDTH), 4)
    return START + tl.arange(0, SIZE // WIDTH)[:, None] * WIDTH + columns[None, :]


@triton.jit
def _load_or_fill(ptr, cols, inside, other):
    """Return the channels `cols` of a vector in fp32, with 0 where the mask `inside` is false. If `ptr` is None, return
    `other` for all channels."""
    if ptr is None:
        x = tl.full(cols.shape, other, tl.float32)
    else:
        x = tl.load(ptr + cols, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _sum(a, b):
    return tl.sum(tl.sum(a, axis=0) + tl.sum(b, axis=0), axis=0)


@triton.jit
def _largest(a, b):
    return tl.max(tl.maximum(tl.max(tl.abs(a), axis=0), tl.max(tl.abs(b), axis=0)), axis=0)


@triton.jit
def _power_of_two_over(x):
    """Return the smallest power of two that is at least x, and its reciprocal, from the bits of x."""
    exponent = (x.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)
