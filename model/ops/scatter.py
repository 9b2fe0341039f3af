"""Operations that apply norm, RoPE and quantization to queries, keys and values, and write them for attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from . import pointwise
from .plain import NormRope


class BeforeRope(NamedTuple):
    """Queries or keys x [tokens, dim] before norm and RoPE. The kernel that converts or stores x applies both."""

    x: Tensor
    norm_rope: NormRope

    def apply_rope_(self) -> Tensor:
        """Apply norm and RoPE to x in place, and return x."""
        return pointwise.rms_rope_(self.x, *self.norm_rope)


def scatter_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """Write x [tokens, dim] to the rows `rows` (int64 [tokens]) of `out` [n, dim], and return `out`."""
    return pointwise.run("scatter_", out, rows, x)


def scatter_fp8_(out: Tensor, rows: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor to the rows `rows` (int64 [tokens]) of `out` (float8_e4m3fn [n, dim]), and return
    `out`. shift [dim] and factor [1] are fp32."""
    return pointwise.run("scatter_fp8_", out, rows, x, shift, factor)


def scatter_transposed_(out: Tensor, columns: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write token i of (x - shift) * factor to the column `columns[i]` (int64 [tokens]) of `out` (float8_e4m3fn [dim,
    n]), and return `out`."""
    return pointwise.run("scatter_transposed_", out, columns, x, shift, factor)


def scatter_rope_(
    out: Tensor,
    rows: Tensor,
    given: BeforeRope,
    scaling: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Apply norm and RoPE to `given` (queries or keys), and write the result to `out` [n, dim] at the row indices
    `rows` (int64 [tokens]). Return `out`. With `scaling` (shift, factor), write (x - shift) * factor in float8_e4m3fn.
    `given` may be overwritten."""
    return pointwise.run("scatter_rope_", out, rows, given.x, given.norm_rope, *scaling)


def rope_fp8(given: BeforeRope) -> tuple[Tensor, Tensor, Tensor]:
    """Apply norm and RoPE to queries, and quantize them to float8_e4m3fn with one scale. Return (values [tokens, dim],
    scale [1], 1 / scale): values * scale are the queries. `given` may be overwritten."""
    scale, factor = (torch.empty(1, dtype=torch.float32, device=given.x.device) for _ in range(2))
    out = torch.empty_like(given.x, dtype=torch.float8_e4m3fn)
    return pointwise.run("rope_fp8_", out, scale, factor, given.x, given.norm_rope), scale, factor


def scatter_qkv_(
    out: tuple[Tensor, Tensor | None],
    rows: Tensor,
    given: tuple[BeforeRope, BeforeRope, Tensor],
    scalings: tuple[Pair, Pair] | None = None,
) -> tuple[Tensor, Tensor, Tensor] | Tensor:
    """Apply norm and RoPE to queries and keys. Write keys and values to the rows `rows` of `out`. Return the queries.

    out: tensors [n, dim] for keys and for values; None skips the values.
    given: queries, keys and values [tokens, dim], which may be overwritten.
    scalings: None, or (shift, factor) of keys and of values: write (x - shift) * factor in float8_e4m3fn. The queries
    then are (fp8 values, scale, 1 / scale).
    """
    (q, *_), (k, *_), v = given
    made = None
    if scalings is not None:
        scale, factor = (torch.empty(1, dtype=torch.float32, device=q.device) for _ in range(2))
        made = torch.empty_like(q, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale, factor
    norm_ropes = given[0].norm_rope, given[1].norm_rope
    pointwise.run("scatter_qkv_", out[0], out[1], rows, (q, k, v), norm_ropes, made, scalings)
    return q if made is None else made
