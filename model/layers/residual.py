"""The residual stream of one batch element: additions to it, and its norms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.linear_8bit import normed, sum_normed
from ..ops.pointwise import Rows, affine_, gated_add_, slices

Waits = Literal["never", "last", "always"]
"""The mode of deferring additions to the stream's next norm. "last": only for the last of a layer's batch elements."""


class Residual:
    """The residual stream x [tokens, dim] of one batch element, written in place.

    If it `waits`, additions and the camera's scale and shift are deferred to the next norm, which may be in the next
    block: one kernel then does all of it and reads x once. A layer's result stays in memory until then. Call `settle`
    before reading x."""

    def __init__(self, x: Tensor, waits: Waits) -> None:
        self._x, self._waits, self.last = x, waits, True
        self._added: tuple[Tensor | None, Tensor | None] = None, None
        self._affine: Pair | None = None

    @property
    def stream(self) -> Tensor:
        """The tensor x; callers may only use its device, dtype and shape."""
        return self._x

    @property
    def waiting(self) -> bool:
        """True while a layer's result waits for the next norm."""
        return self._added[0] is not None

    def add(self, y: Tensor, gate: Tensor | None = None) -> None:
        """Add y * gate to x; y [tokens, dim], gate [dim] or None for ones."""
        self.settle()
        if self._waits == "always" or (self._waits == "last" and self.last):
            self._added = y, gate
        else:
            gated_add_(self._x, y, gate)

    def scale_and_shift(self, scale: Tensor, shift: Tensor) -> None:
        """Replace x by x * (1 + scale) + shift, both [tokens, dim]."""
        if self._waits != "never" and self._affine is None:
            self._affine = scale, shift
        else:
            affine_(self.settle(), scale, shift)

    def normed(self, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, *layers: object) -> Rows:
        """Return `layer_norm` of x for the `layers` that use it: in their 8-bit input dtype, or else in `dtype`."""
        added, affine = self._take_deferred()
        if added[0] is None and affine is None:
            return normed(self._x, weight, bias, eps, dtype, *layers)
        return sum_normed(self._x, added, affine or (None, None), weight, bias, eps, dtype, *layers)

    def settle(self) -> Tensor:
        """Apply the deferred operations and return x."""
        (y, gate), affine = self._take_deferred()
        if y is not None:
            gated_add_(self._x, y, gate)
        if affine is not None:
            affine_(self._x, *affine)
        return self._x

    def parts(self, limit: int) -> Iterator[Residual]:
        """Yield parts of nearly equal length with at most `limit` tokens each."""
        return (self.part(part) for part in slices(len(self._x), limit))

    def part(self, tokens: slice) -> Residual:
        """Return the stream of a slice of the tokens."""
        if tokens.start == 0 and tokens.stop >= len(self._x):
            return self
        return Residual(self.settle()[tokens], "never")

    def _take_deferred(self) -> tuple[tuple[Tensor | None, Tensor | None], Pair | None]:
        """Return the deferred addition, scale and shift, and clear them."""
        deferred = self._added, self._affine
        self._added, self._affine = (None, None), None
        return deferred


def residuals(x: Tensor, defer_all: bool = False) -> list[Residual]:
    """Return the residual stream of each batch element of x [B, tokens, dim].

    The additions of a single batch element are always deferred. Of several batch elements, the additions of all are
    deferred if `defer_all`, else only those of the last one."""
    waits: Waits = "always" if defer_all or len(x) == 1 else "last"
    return [Residual(row, "never" if torch.compiler.is_compiling() else waits) for row in x]


def in_turn(rows: Sequence[Residual], *given: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield each batch element with its items of `given`, in the order in which a layer processes them.

    A residual stream with a deferred addition is first, because its norm frees the memory of the addition. So a layer
    may defer the addition of its last batch element: the next layer begins with that element."""
    turns = list(zip(rows, *given, strict=True))
    if any(row.waiting for row in rows):
        turns.sort(key=lambda turn: not turn[0].waiting)
    for row in rows:
        row.last = row is turns[-1][0]
    yield from turns
