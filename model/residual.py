"""A row's residual stream: what is added to it, and its norms."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .cache import Pair
from .linear_8bit import normed, sum_normed
from .pointwise import Rows, affine_, gated_add_, slices


class Residual:
    """The residual stream x [tokens, dim] of one row, written in place.

    Where it `waits`, what is added and the camera's scale and shift wait for the next norm, which may be the next
    block's: one kernel does all of it and reads x once. That keeps a layer's result a little longer, so rows of a batch
    do not wait. Call `settle` before x is read."""

    def __init__(self, x: Tensor, waits: bool) -> None:
        self._x, self._waits = x, waits
        self._added: tuple[Tensor, Tensor | None] | None = None
        self._affine: Pair | None = None

    @property
    def stream(self) -> Tensor:
        """x, of which only device, dtype and shape may be asked."""
        return self._x

    def add(self, y: Tensor, gate: Tensor | None = None) -> None:
        """x + y * gate; y [tokens, dim], gate [dim] or None for ones."""
        self.settle()
        if self._waits:
            self._added = y, gate
        else:
            gated_add_(self._x, y, gate)

    def scale_and_shift(self, scale: Tensor, shift: Tensor) -> None:
        """x * (1 + scale) + shift, both [tokens, dim]."""
        if self._added is not None and self._affine is None:
            self._affine = scale, shift
        else:
            affine_(self.settle(), scale, shift)

    def normed(self, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, *layers: object) -> Rows:
        """`layer_norm` of x as these layers take it: in 8 bits, else in `dtype`."""
        added, affine = self._added, self._affine
        if added is None:
            return normed(self._x, weight, bias, eps, dtype, *layers)
        self._added = self._affine = None
        return sum_normed(self._x, added, affine or (None, None), weight, bias, eps, dtype, *layers)

    def settle(self) -> Tensor:
        """x, with all that was added."""
        added, affine = self._added, self._affine
        self._added = self._affine = None
        if added is not None:
            gated_add_(self._x, *added)
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
        return Residual(self.settle()[tokens], waits=False)


def residuals(x: Tensor) -> list[Residual]:
    """The rows of x [rows, tokens, dim]. A single one waits."""
    return [Residual(row, waits=len(x) == 1 and not torch.compiler.is_compiling()) for row in x]
