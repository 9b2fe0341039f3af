"""The element-wise operations on a chunk's own queries, keys and values, on their way to attention: norm, rotation, 8
bits, and the places of a cache where attention sees them. They run as those of pointwise.py do."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import Pair
from . import pointwise
from .plain import Turning


class Unturned(NamedTuple):
    """Keys [tokens, dim] before norm and rotation: who stores them does both on the way."""

    x: Tensor
    turning: Turning

    def turned(self) -> Tensor:
        """After both, in place."""
        return pointwise.rms_rope_(self.x, *self.turning)


def put_(out: Tensor, rows: Tensor, x: Tensor) -> Tensor:
    """The `rows` (int64 [tokens]) of `out` become x [tokens, dim]."""
    return pointwise.run("put_", out, rows, x)


def put_fp8_(out: Tensor, rows: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """The `rows` (int64 [tokens]) of `out` become what `to_fp8_` makes of x [tokens, dim]."""
    return pointwise.run("put_fp8_", out, rows, x, shift, factor)


def put_across_(out: Tensor, places: Tensor, x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    """The columns `places` (int64 [tokens]) of `out` [dim, columns], float8_e4m3fn, become x [tokens, dim] as `to_fp8_`
    makes them."""
    return pointwise.run("put_across_", out, places, x, shift, factor)


def put_turned_(
    out: Tensor,
    rows: Tensor,
    given: Unturned,
    scaling: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """The `rows` (int64 [tokens]) of `out` become what is `given`, normed and turned; with `scaling`, shift and factor,
    what `to_fp8_` makes of that. What is given may be written over."""
    return pointwise.run("put_turned_", out, rows, given.x, given.turning, *scaling)


def turned_fp8(given: Unturned) -> tuple[Tensor, Tensor, Tensor]:
    """What is given, normed and turned, in float8_e4m3fn; its scale [1], and 1 over it. The scale is the least power of
    two with which no token becomes too large: a norm bounds its result. What is given may be written over."""
    scale, factor = (torch.empty(1, dtype=torch.float32, device=given.x.device) for _ in range(2))
    out = torch.empty_like(given.x, dtype=torch.float8_e4m3fn)
    return pointwise.run("turned_fp8_", out, scale, factor, given.x, given.turning), scale, factor


def put_own_(
    out: tuple[Tensor, Tensor | None],
    rows: Tensor,
    given: tuple[Unturned, Unturned, Tensor],
    scalings: tuple[Pair, Pair] | None = None,
) -> tuple[Tensor, Tensor, Tensor] | Tensor:
    """What is `given`, queries, keys and values, where attention takes it, in one kernel: keys, normed and turned, and
    values in these `rows` of what is `out`, and queries, normed and turned, as the result. With `scalings`, shift and
    factor of keys and of values, all of it in 8 bits, as `turned_fp8` and `put_fp8_` make it; else queries are turned
    in place. Without a place for values they stay as they are. What is given may be written over."""
    (q, *_), (k, *_), v = given
    made = None
    if scalings is not None:
        scale, factor = (torch.empty(1, dtype=torch.float32, device=q.device) for _ in range(2))
        made = torch.empty_like(q, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format), scale, factor
    turnings = given[0].turning, given[1].turning
    pointwise.run("put_own_", out[0], out[1], rows, (q, k, v), turnings, made, scalings)
    return q if made is None else made
