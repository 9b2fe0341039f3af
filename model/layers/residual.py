"""A row's residual stream: what is added to it, and its norms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.linear_8bit import normed, sum_normed
from ..ops.pointwise import Rows, affine_, gated_add_, slices

Waits = Literal["never", "last", "always"]
"""When a row's sums wait for its next norm; "last": when it is the last of its layer's rows."""


class Residual:
    """The residual stream x [tokens, dim] of one row, written in place.

    Where it `waits`, what is added and the camera's scale and shift wait for the next norm, which may be the next
    block's: one kernel does all of it and reads x once. That keeps a layer's result until then. Call `settle` before x
    is read."""

    def __init__(self, x: Tensor, waits: Waits) -> None:
        self._x, self._waits, self.last = x, waits, True
        self._added: tuple[Tensor | None, Tensor | None] = None, None
        self._affine: Pair | None = None

    @property
    def stream(self) -> Tensor:
        """x, of which only device, dtype and shape may be asked."""
        return self._x

    @property
    def waiting(self) -> bool:
        """Whether a layer's result is kept for the next norm."""
        return self._added[0] is not None

    def add(self, y: Tensor, gate: Tensor | None = None) -> None:
        """x + y * gate; y [tokens, dim], gate [dim] or None for ones."""
        self.settle()
        if self._waits == "always" or (self._waits == "last" and self.last):
            self._added = y, gate
        else:
            gated_add_(self._x, y, gate)

    def scale_and_shift(self, scale: Tensor, shift: Tensor) -> None:
        """x * (1 + scale) + shift, both [tokens, dim]."""
        if self._waits != "never" and self._affine is None:
            self._affine = scale, shift
        else:
            affine_(self.settle(), scale, shift)

    def normed(self, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, *layers: object) -> Rows:
        """`layer_norm` of x as these layers take it: in 8 bits, else in `dtype`."""
        added, affine = self._taken()
        if added[0] is None and affine is None:
            return normed(self._x, weight, bias, eps, dtype, *layers)
        return sum_normed(self._x, added, affine or (None, None), weight, bias, eps, dtype, *layers)

    def settle(self) -> Tensor:
        """x, with all that was added."""
        (y, gate), affine = self._taken()
        if y is not None:
            gated_add_(self._x, y, gate)
        if affine is not None:
            affine_(self._x, *affine)
        return self._x

    def parts(self, limit: int) -> Iterator[Residual]:
        """Of nearly equal length, and at most so many tokens each."""
        return (self.part(part) for part in slices(len(self._x), limit))

    def part(self, tokens: slice) -> Residual:
        """These tokens of it."""
        if tokens.start == 0 and tokens.stop >= len(self._x):
            return self
        return Residual(self.settle()[tokens], "never")

    def _taken(self) -> tuple[tuple[Tensor | None, Tensor | None], Pair | None]:
        """What is added, and scale and shift, which wait no longer."""
        taken = self._added, self._affine
        self._added, self._affine = (None, None), None
        return taken


def residuals(x: Tensor, all_wait: bool = False) -> list[Residual]:
    """The rows of x [rows, tokens, dim]. A single one always waits; of several, if `all_wait`, all of them."""
    waits: Waits = "always" if all_wait or len(x) == 1 else "last"
    return [Residual(row, "never" if torch.compiler.is_compiling() else waits) for row in x]


def in_turn(rows: Sequence[Residual], *given: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Each row and what it is `given`, as a layer takes them: a row that waits comes first, so that its norm frees what
    is kept for it. The last one may wait: it comes first in the next layer, and nothing is kept meanwhile."""
    turns = list(zip(rows, *given, strict=True))
    if any(row.waiting for row in rows):
        turns.sort(key=lambda turn: not turn[0].waiting)
    for row in rows:
        row.last = row is turns[-1][0]
    yield from turns
