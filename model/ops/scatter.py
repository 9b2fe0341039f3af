"""The element-wise operations on a chunk's own queries, keys and values before attention.

They apply norm, RoPE and 8-bit conversion, and scatter into the cache that attention reads. They run like the
operations of pointwise.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from . import pointwise
from .plain import NormRope


class Unrotated(NamedTuple):
    """Queries or keys [tokens, dim] before norm and RoPE, which are applied when they are stored."""

    x: Tensor
    norm_rope: NormRope

    def rotated(self) -> Tensor:
        """Apply norm and RoPE in place and return the result."""
        return pointwise.rms_rope_(self.x, *self.norm_rope)


def scatter_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """Write x [tokens, dim] to the `rows` (int64 [tokens]) of `out`."""
    return pointwise.run("scatter_", out, rows, x)


def scatter_fp8_(out: Tensor, rows: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write `to_fp8_` of x [tokens, dim] to the `rows` (int64 [tokens]) of `out`."""
    return pointwise.run("scatter_fp8_", out, rows, x, shift, factor)


def scatter_transposed_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write `to_fp8_` of x [tokens, dim], transposed, to the columns `places` (int64 [tokens]) of `out`.

    `out` [dim, columns] is float8_e4m3fn."""
    return pointwise.run("scatter_transposed_", out, places, x, shift, factor)


def scatter_rotated_(
    out: Tensor,
    rows: Tensor,
    given: Unrotated,
    scaling: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Write `given` after norm and RoPE to the `rows` (int64 [tokens]) of `out`; `given` may be overwritten.

    With `scaling`, a shift and a factor, the result is converted by `to_fp8_`."""
    return pointwise.run("scatter_rotated_", out, rows, given.x, given.norm_rope, *scaling)


def rotated_fp8(given: Unrotated) -> tuple[Tensor, Tensor, Tensor]:
    """Return `given` after norm and RoPE in float8_e4m3fn, its scale [1], and 1 / scale; `given` may be overwritten.

    The scale is the smallest power of two with which no token overflows, because the norm bounds its result."""
    scale, factor = (torch.empty(1, dtype=torch.float32, device=given.x.device) for _ in range(2))
    out = torch.empty_like(given.x, dtype=torch.float8_e4m3fn)
    return pointwise.run("rotated_fp8_", out, scale, factor, given.x, given.norm_rope), scale, factor


def scatter_qkv_(
    out: tuple[Tensor, Tensor | None],
    rows: Tensor,
    given: tuple[Unrotated, Unrotated, Tensor],
    scalings: tuple[Pair, Pair] | None = None,
) -> tuple[Tensor, Tensor, Tensor] | Tensor:
    """Prepare `given` queries, keys and values for attention in one kernel; `given` may be overwritten.

    Keys after norm and RoPE, and values, are written to these `rows` of `out`. Queries after norm and RoPE are
    returned. With `scalings`, the shift and factor of keys and of values, the results are in 8 bits as in `rotated_fp8`
    and `scatter_fp8_`; otherwise queries are rotated in place. Values without a tensor in `out` are not written."""
    (q, *_), (k, *_), v = given
    made = None
    if scalings is not None:
        scale, factor = (torch.empty(1, dtype=torch.float32, device=q.device) for _ in range(2))
        made = torch.empty_like(q, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale, factor
    norm_ropes = given[0].norm_rope, given[1].norm_rope
    pointwise.run("scatter_qkv_", out[0], out[1], rows, (q, k, v), norm_ropes, made, scalings)
    return q if made is None else made
