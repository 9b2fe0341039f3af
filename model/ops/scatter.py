"""The operations that apply norm, RoPE and the conversion to 8 bits to a chunk's queries, keys and values, and write
them to the tensors that attention reads. implementation.py selects the code."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from . import pointwise
from .plain import NormRope


class Unrotated(NamedTuple):
    """Queries or keys before norm and RoPE. The kernel that converts or stores the tokens applies norm and RoPE on the
    way, which saves a pass over memory.

    x: [tokens, dim].
    norm_rope: the arguments of norm and RoPE.
    """

    x: Tensor
    norm_rope: NormRope

    def rotated(self) -> Tensor:
        """Apply norm and RoPE to x in place, and return x."""
        return pointwise.rms_rope_(self.x, *self.norm_rope)


def scatter_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """Write x [tokens, dim] to the rows `rows` (int64 [tokens]) of `out` [n, dim], and return `out`."""
    return pointwise.run("scatter_", out, rows, x)


def scatter_fp8_(out: Tensor, rows: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor, for x [tokens, dim], to the rows `rows` (int64 [tokens]) of `out`; return `out`.
    `out` is float8_e4m3fn [n, dim]. shift [dim] and factor [1] are fp32."""
    return pointwise.run("scatter_fp8_", out, rows, x, shift, factor)


def scatter_transposed_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor, for x [tokens, dim], to the columns `places` (int64 [tokens]) of `out`; return `out`.
    `out` is float8_e4m3fn [dim, n]. shift [dim] and factor [1] are fp32."""
    return pointwise.run("scatter_transposed_", out, places, x, shift, factor)


def scatter_rotated_(
    out: Tensor,
    rows: Tensor,
    given: Unrotated,
    scaling: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Write queries or keys, after norm and RoPE, to the rows `rows` (int64 [tokens]) of `out` [n, dim]; return `out`.

    If `scaling` is a shift (fp32 [dim]) and a factor (fp32 [1]), write (result - shift) * factor as float8_e4m3fn.
    `given` may be overwritten.
    """
    return pointwise.run("scatter_rotated_", out, rows, given.x, given.norm_rope, *scaling)


def rotated_fp8(given: Unrotated) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries after norm and RoPE in float8_e4m3fn [tokens, dim], their scale and 1 / scale (fp32 [1] each).

    The scale is the smallest power of two for which the norm's weight guarantees that no query is longer than
    `plain.QUERY_LENGTH` after division by the scale. `given` may be overwritten.
    """
    scale, factor = (torch.empty(1, dtype=torch.float32, device=given.x.device) for _ in range(2))
    out = torch.empty_like(given.x, dtype=torch.float8_e4m3fn)
    return pointwise.run("rotated_fp8_", out, scale, factor, given.x, given.norm_rope), scale, factor


def scatter_qkv_(
    out: tuple[Tensor, Tensor | None],
    rows: Tensor,
    given: tuple[Unrotated, Unrotated, Tensor],
    scalings: tuple[Pair, Pair] | None = None,
) -> tuple[Tensor, Tensor, Tensor] | Tensor:
    """Write keys and values to rows of two tensors, and return the queries, in one operation.

    out: the tensors [n, dim] for keys and for values. If the second is None, no values are written.
    rows: the numbers of the rows to write to, int64 [tokens].
    given: queries, keys and values. Norm and RoPE are applied to queries and keys. All three may be overwritten.
    scalings: a pair (shift, factor) for keys and a pair for values, or None.

    With `scalings`, keys and values are written as (x - shift) * factor in float8_e4m3fn. The result is then the
    queries in float8_e4m3fn [tokens, dim], their scale and 1 / scale (fp32 [1] each). Without `scalings`, the result is
    the queries [tokens, dim].
    """
    (q, *_), (k, *_), v = given
    made = None
    if scalings is not None:
        scale, factor = (torch.empty(1, dtype=torch.float32, device=q.device) for _ in range(2))
        made = torch.empty_like(q, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale, factor
    norm_ropes = given[0].norm_rope, given[1].norm_rope
    pointwise.run("scatter_qkv_", out[0], out[1], rows, (q, k, v), norm_ropes, made, scalings)
    return q if made is None else made
