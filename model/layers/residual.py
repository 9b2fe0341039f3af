"""The residual stream of one batch element, with additions that are deferred to the next norm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..cache import Pair
from ..ops.implementation import slices
from ..ops.linear_8bit import normed, sum_normed
from ..ops.pointwise import Rows, affine_, gated_add_

Deferral = Literal["never", "last", "always"]
"""When a residual addition is deferred to the next norm: "never", "always", or, for "last", only for the batch element
that a layer processes last."""


class Residual:
    """The residual stream x [tokens, dim] of one batch element, updated in place. The next norm applies deferred
    operations. Call `settle` before you read x."""

    def __init__(self, x: Tensor, deferral: Deferral) -> None:
        self._x, self._deferral, self.last = x, deferral, True
        self._added: tuple[Tensor | None, Tensor | None] = None, None
        self._affine: Pair | None = None

    @property
    def stream(self) -> Tensor:
        """The tensor x, for its device, dtype and shape only: its values may be outdated."""
        return self._x

    @property
    def waiting(self) -> bool:
        """Whether an addition to the residual stream is deferred to the next norm."""
        return self._added[0] is not None

    def add(self, y: Tensor, gate: Tensor | None = None) -> None:
        """Add y * gate to the residual stream x, at once or at the next norm, as its Deferral says. y is [tokens, dim];
        gate is [dim], or None for ones."""
        self.settle()
        if self._deferral == "always" or (self._deferral == "last" and self.last):
            self._added = y, gate
        else:
            gated_add_(self._x, y, gate)

    def scale_and_shift(self, scale: Tensor, shift: Tensor) -> None:
        """Replace x by x * (1 + scale) + shift, now or at the next norm. scale and shift are [tokens, dim]."""
        if self._deferral != "never" and self._affine is None:
            self._affine = scale, shift
        else:
            affine_(self.settle(), scale, shift)

    def normed(self, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, *layers: object) -> Rows:
        """Apply the deferred additions and scalings to the residual stream x, and return its layer norm. The result is
        in the 8-bit dtype that all `layers` take as input. Without this common dtype, it is in `dtype`."""
        added, affine = self._take_deferred()
        if added[0] is None and affine is None:
            return normed(self._x, weight, bias, eps, dtype, *layers)
        return sum_normed(self._x, added, affine or (None, None), weight, bias, eps, dtype, *layers)

    def settle(self) -> Tensor:
        """Apply the deferred operations to x, and return x."""
        (y, gate), affine = self._take_deferred()
        if y is not None:
            gated_add_(self._x, y, gate)
        if affine is not None:
            affine_(self._x, *affine)
        return self._x

    def parts(self, limit: int) -> Iterator[Residual]:
        """Yield a Residual for each of several consecutive parts of the tokens. A part has at most `limit` tokens,
        rounded up to a multiple of 128."""
        return (self.part(part) for part in slices(len(self._x), limit))

    def part(self, tokens: slice) -> Residual:
        """Return this object if the slice contains all tokens. Otherwise apply the deferred operations, and return a
        Residual of a view of those tokens, which never defers operations."""
        if tokens.start == 0 and tokens.stop >= len(self._x):
            return self
        return Residual(self.settle()[tokens], "never")

    def _take_deferred(self) -> tuple[tuple[Tensor | None, Tensor | None], Pair | None]:
        deferred = self._added, self._affine
        self._added, self._affine = (None, None), None
        return deferred


def residuals(x: Tensor, defer_all: bool = False) -> list[Residual]:
    """Return a Residual for each batch element of x [B, tokens, dim]. With `defer_all`, all elements defer additions to
    the next norm. Otherwise only the element that a layer processes last does. During torch.compile none does."""
    deferral: Deferral = "always" if defer_all or len(x) == 1 else "last"
    return [Residual(row, "never" if torch.compiler.is_compiling() else deferral) for row in x]


def deferred_first(rows: Sequence[Residual], *given: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield a tuple for each batch element: its residual stream, and its item of each iterable `given`. Streams with a
    deferred addition come first, because applying it frees memory. Set `last`: True for the last stream only."""
    turns = list(zip(rows, *given, strict=True))
    if any(row.waiting for row in rows):
        turns.sort(key=lambda turn: not turn[0].waiting)
    for row in rows:
        row.last = row is turns[-1][0]
    yield from turns
