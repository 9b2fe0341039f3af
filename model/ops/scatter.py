"""The element-wise operations on a chunk's own queries, keys and values before attention.

They apply norm, RoPE and 8-bit conversion, and scatter into the cache that attention reads. They run like the
operations of pointwise.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from . import pointwise
from .plain import Turning


class Unturned(NamedTuple):
    """Queries or keys [tokens, dim] before norm and RoPE, which are applied when they are stored."""

    x: Tensor
    turning: Turning

    def turned(self) -> Tensor:
        """Apply norm and RoPE in place and return the result."""
        return pointwise.rms_rope_(self.x, *self.turning)


def put_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """Write x [tokens, dim] to the `rows` (int64 [tokens]) of `out`."""
    return pointwise.run("put_", out, rows, x)


def put_fp8_(out: Tensor, rows: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write `to_fp8_` of x [tokens, dim] to the `rows` (int64 [tokens]) of `out`."""
    return pointwise.run("put_fp8_", out, rows, x, shift, factor)


def put_across_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """Write `to_fp8_` of x [tokens, dim], transposed, to the columns `places` (int64 [tokens]) of `out`.

    `out` [dim, columns] is float8_e4m3fn."""
    return pointwise.run("put_across_", out, places, x, shift, factor)


def put_turned_(
    out: Tensor,
    rows: Tensor,
    given: Unturned,
    scaling: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Write `given` after norm and RoPE to the `rows` (int64 [tokens]) of `out`; `given` may be overwritten.

    With `scaling`, a shift and a factor, the result is converted by `to_fp8_`."""
    return pointwise.run("put_turned_", out, rows, given.x, given.turning, *scaling)


def turned_fp8(given: Unturned) -> tuple[Tensor, Tensor, Tensor]:
    """Return `given` after norm and RoPE in float8_e4m3fn, its scale [1], and 1 / scale; `given` may be overwritten.

    The scale is the smallest power of two with which no token overflows, because the norm bounds its result."""
    scale, factor = (torch.empty(1, dtype=torch.float32, device=given.x.device) for _ in range(2))
    out = torch.empty_like(given.x, dtype=torch.float8_e4m3fn)
    return pointwise.run("turned_fp8_", out, scale, factor, given.x, given.turning), scale, factor


def put_own_(
    out: tuple[Tensor, Tensor | None],
    rows: Tensor,
    given: tuple[Unturned, Unturned, Tensor],
    scalings: tuple[Pair, Pair] | None = None,
) -> tuple[Tensor, Tensor, Tensor] | Tensor:
    """Prepare `given` queries, keys and values for attention in one kernel; `given` may be overwritten.

    Keys after norm and RoPE, and values, are written to these `rows` of `out`. Queries after norm and RoPE are
    returned. With `scalings`, the shift and factor of keys and of values, the results are in 8 bits as in `turned_fp8`
    and `put_fp8_`; otherwise queries are rotated in place. If `out` has no tensor for values, they are not written."""
    (q, *_), (k, *_), v = given
    made = None
    if scalings is not None:
        scale, factor = (torch.empty(1, dtype=torch.float32, device=q.device) for _ in range(2))
        made = torch.empty_like(q, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale, factor
    turnings = given[0].turning, given[1].turning
    pointwise.run("put_own_", out[0], out[1], rows, (q, k, v), turnings, made, scalings)
    return q if made is None else made
