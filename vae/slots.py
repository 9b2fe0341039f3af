"""The slots that frames get in the decoder's pools, chosen before a latent frame is decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from .network import Decoder


class Slots:
    """An assignment of frames to slots, which are indices in a pool. A pool is a tensor that stores the last two input
    frames of several temporal layers. One further slot of each pool is free for the next frame.

    pools: the pool's name by the layer's name.
    """

    def __init__(self, pools: Mapping[str, str]) -> None:
        self._pools, self._own = pools, dict[str, list[int]]()
        self._free = {pool: list(range(2 * layers + 1)) for pool, layers in Counter(pools.values()).items()}

    def take(self, layer: str) -> list[int]:
        """Assign the pool's free slot to a layer's new frame. Return the slots of the layer's two previous frames, the
        oldest first, and of the new frame. The next call for the same pool reuses the oldest frame's slot."""
        free = self._free[self._pools[layer]]  # the last free slot has held frames, the others are zeros
        before = self._own.get(layer) or [free.pop(0), free.pop(0)]
        slots = [*before, free.pop()]
        self._own[layer] = slots[1:]
        free.append(slots[0])
        return slots


class _LayerRecorder(Decoder):
    """A decoder that computes nothing, but records the order of its temporal layers."""

    def __init__(self, weights: Mapping[str, Tensor], first: bool) -> None:
        super().__init__(weights)
        self.layers: list[str] = []
        self._first = first

    def _conv(self, _name: str, x: Tensor, *_how: int | None) -> Tensor:
        return x

    def _causal_conv(self, name: str, x: Tensor) -> Tensor:
        self.layers.append(name)
        return x

    def _activated_conv(self, _norm: str, conv: str, x: Tensor) -> Tensor:
        return self._causal_conv(conv, x)

    def _residual(self, name: str, x: Tensor) -> Tensor:
        return self._causal_conv(f"{name}.residual.6", self._causal_conv(f"{name}.residual.2", x))

    def _attention(self, _name: str, x: Tensor) -> Tensor:
        return x

    def _doubled(self, _name: str, x: Tensor) -> Tensor:
        return x

    def _double_time(self, name: str, x: Tensor) -> Iterable[Tensor]:
        if self._first or f"{name}.weight" not in self.weights:
            return (x,)
        self._causal_conv(name, x)
        return x, x


def layers_in_order(weights: Mapping[str, Tensor], first: bool) -> list[str]:
    """Return the names of the temporal layers in the order of their calls for one latent frame. A layer called twice is
    listed twice. `first` marks a video's first latent frame."""
    recorder = _LayerRecorder(weights, first)
    for _frame in recorder.decode(torch.empty(0)):
        pass
    return recorder.layers
