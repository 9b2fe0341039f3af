"""Triton kernels that merge attention over parts of the keys, documented in ops/pointwise.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import matrix_8bit
from .launch import Kernel
from .matrix_8bit import _store_token_8bit
from .sizes import token_sizes


@Kernel
def _merge(
    out_ptr,
    parts_ptr,
    sums_ptr,
    rest_ptr,
    rest_sums_ptr,
    rows,
    heads,
    tokens,
    dim,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The kernel of `merge_`. A program merges ROWS rows (one token and head each) of all parts, weighted by `sums`."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols, inside = tl.arange(0, BLOCK)[None, :], row < rows
    at, whole = row[:, None] * dim + cols, inside[:, None] & (cols < dim)
    sum_at = row % heads * tokens + row // heads
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    if rest_ptr is not None:
        largest = tl.load(rest_sums_ptr + sum_at, mask=inside, other=0.0)
    for part in tl.static_range(PARTS):
        largest = tl.maximum(largest, tl.load(sums_ptr + part * rows + sum_at, mask=inside, other=0.0))
    total, out = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    if rest_ptr is not None:
        total += tl.exp(tl.load(rest_sums_ptr + sum_at, mask=inside, other=0.0) - largest)
        out += total[:, None] * tl.load(rest_ptr + at, mask=whole, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        share = tl.exp(tl.load(sums_ptr + part * rows + sum_at, mask=inside, other=0.0) - largest)
        total += share
        x = tl.load(parts_ptr + part * rows * dim + at, mask=whole, other=0.0).to(tl.float32)
        out += share[:, None] * x
    tl.store(out_ptr + at, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=whole)


@Kernel
def _from_fp8_rows(
    out_ptr, scales_ptr, values_ptr, shift_ptr, factor_ptr, dim, FIRST: tl.constexpr, SECOND: tl.constexpr
):
    row, factor = tl.program_id(0).to(tl.int64), tl.load(factor_ptr)
    left, right = tl.arange(0, FIRST), FIRST + tl.arange(0, SECOND)
    inside = right < dim
    a = tl.load(values_ptr + row * dim + left).to(tl.float32) * factor + tl.load(shift_ptr + left)
    b = tl.load(values_ptr + row * dim + right, mask=inside, other=0.0).to(tl.float32) * factor
    b += tl.load(shift_ptr + right, mask=inside, other=0.0)
    if scales_ptr is None:
        tl.store(out_ptr + row * dim + left, a.to(out_ptr.dtype.element_ty))
        tl.store(out_ptr + row * dim + right, b.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        _store_token_8bit(out_ptr, scales_ptr, row, left, right, a, b, dim)


def merge_(out: Tensor, parts: Tensor, log_sums: Tensor, rest: Tensor | None, rest_log_sums: Tensor | None) -> Tensor:
    count, tokens, heads, dim = parts.shape
    rows, block = tokens * heads, triton.next_power_of_2(dim)
    several = max(1, 2048 // block)
    with torch.cuda.device_of(out):
        given = out, parts, log_sums, rest, rest_log_sums, rows, heads, tokens, dim
        _merge[(triton.cdiv(rows, several),)](*given, PARTS=count, ROWS=several, BLOCK=block)
    return out


def merge_fp8_(
    out: Tensor,
    scales: Tensor | None,
    parts: Tensor,
    log_sums: Tensor | None,
    rest: Tensor | None,
    rest_log_sums: Tensor | None,
    shift: Tensor,
    factor: Tensor,
) -> Tensor:
    """Merge fp8 attention over parts of the keys, weighted by softmax(log_sums). Write merged * factor + shift to `out`
    [tokens, dim], and return `out`.

    scales: receives each token's scale if `out` is in 8 bits; else None.
    parts: attention over each part, [n, tokens, heads, head_dim].
    log_sums: the parts' log-sum-exps, [n, heads, tokens]; None for a single part.
    rest, rest_log_sums: one more part, or None.
    shift, factor: v's mean [dim] and scale [1].
    """
    _, tokens, heads, width = parts.shape
    if log_sums is None:
        with torch.cuda.device_of(out):
            _from_fp8_rows[(tokens,)](
                out, scales, parts, shift, factor, heads * width, **token_sizes(heads * width, 1280)
            )
        return out
    merged = out if scales is None else torch.empty_like(out, dtype=torch.bfloat16)
    merge_(merged.unflatten(1, (heads, -1)), parts, log_sums, rest, rest_log_sums)
    matrix_8bit.from_fp8_(merged, merged, shift, factor)
    return out if scales is None else matrix_8bit.encode_8bit_(out, scales, merged)
