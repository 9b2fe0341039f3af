"""The operations that write a chunk's queries, keys and values to the tensors that attention reads.

They apply norm, RoPE and the conversion to 8 bits. Like the operations of ops/pointwise.py, each has several
implementations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from . import pointwise
from .plain import NormRope


class Unrotated(NamedTuple):
    """Queries or keys x [tokens, dim] before norm and RoPE, and the arguments of norm and RoPE.

    Norm and RoPE are applied later, by the kernel that writes the tokens to a cache.
    """

    x: Tensor
    norm_rope: NormRope

    def rotated(self) -> Tensor:
        """Apply norm and RoPE to x in place, and return x."""
        return pointwise.rms_rope_(self.x, *self.norm_rope)


def scatter_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """Write x [tokens, dim] to the rows of `out` [n, dim] with the numbers `rows` (int64 [tokens]), and return
    `out`."""
    return pointwise.run("scatter_", out, rows, x)


def scatter_fp8_(out: Tensor, rows: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor, for x [tokens, dim], to rows of `out` (float8_e4m3fn [rows, dim]); return `out`.

    shift [dim] and factor [1] are fp32. `rows` (int64 [tokens]) are the numbers of the rows.
    """
    return pointwise.run("scatter_fp8_", out, rows, x, shift, factor)


def scatter_transposed_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write (x - shift) * factor, for x [tokens, dim], to columns of `out` (float8_e4m3fn [dim, columns]). Return
    `out`.

    shift [dim] and factor [1] are fp32. `places` (int64 [tokens]) are the tokens' columns in `out`.
    """
    return pointwise.run("scatter_transposed_", out, places, x, shift, factor)


def scatter_rotated_(
    out: Tensor,
    rows: Tensor,
    given: Unrotated,
    scaling: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Write the queries or keys `given`, after norm and RoPE, to rows of `out` [n, dim], and return `out`.

    `rows` (int64 [tokens]) are the numbers of the rows. If `scaling` has a shift (fp32 [dim]) and a factor (fp32 [1]),
    (result - shift) * factor is written as float8_e4m3fn. `given` may be overwritten.
    """
    return pointwise.run("scatter_rotated_", out, rows, given.x, given.norm_rope, *scaling)


def rotated_fp8(given: Unrotated) -> tuple[Tensor, Tensor, Tensor]:
    """Return the queries `given` after norm and RoPE in float8_e4m3fn [tokens, dim], with scale and 1 / scale (fp32 [1]
    each).

    The scale is the smallest power of two with which no token can overflow. It follows from the norm's weight alone,
    without reading the tokens. `given` may be overwritten.
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

    out: the tensors for keys and for values. If the second is None, no values are written.
    rows: the numbers of the rows to write to, int64 [tokens].
    given: the queries, keys and values. Norm and RoPE are applied to queries and keys. All three may be overwritten.
    scalings: a pair (shift, factor) for keys and one for values, or None.

    With `scalings`, keys and values are written as (x - shift) * factor in float8_e4m3fn. The result is then the
    queries in float8_e4m3fn [tokens, dim], their scale, and 1 / scale (fp32 [1] each). Without `scalings`, the result
    is the queries [tokens, dim], after norm and RoPE in place.
    """
    (q, *_), (k, *_), v = given
    made = None
    if scalings is not None:
        scale, factor = (torch.empty(1, dtype=torch.float32, device=q.device) for _ in range(2))
        made = torch.empty_like(q, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale, factor
    norm_ropes = given[0].norm_rope, given[1].norm_rope
    pointwise.run("scatter_qkv_", out[0], out[1], rows, (q, k, v), norm_ropes, made, scalings)
    return q if made is None else made
