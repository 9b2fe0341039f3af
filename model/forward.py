"""What the blocks of a forward are given beside the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, cast

import torch
from torch import Tensor

from .cache import CameraCache
from .parallel import SequenceParallel, TokenShare

if TYPE_CHECKING:
    from .kv.cache import KeyValueCache
    from .layers.residual import Residual

Times = tuple[Tensor, Tensor]
"""The time embedding and the blocks' modulation of a timestep."""

Rope = tuple[Tensor, Tensor]
"""Cosines and sines of the tokens' positions."""


@dataclass(frozen=True)
class Camera:
    """The embedded camera: `tokens` [1 or rows, tokens, dim]; `cache` may hold the scale and shift made from them."""

    tokens: Tensor
    cache: CameraCache | None = None


class ForwardInputs(NamedTuple):
    """What the kernels of a forward read, beside weights and caches: the latent `x` [B, 36, F, H, W] of this process's
    frames, the time embedding [B, dim] and the blocks' modulation [B, 6, dim], the embedded prompts `context` [B,
    text_len, dim], the embedded camera, the rope table; `lengths`, int32 [B], are those of the prompts without their
    padding, where attention passes over that."""

    x: Tensor
    times: Times
    context: Tensor
    camera: Camera | None
    rope: Rope
    lengths: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All of it."""
        others = [] if self.camera is None else [self.camera.tokens]
        if self.lengths is not None:
            others.append(self.lengths)
        return [self.x, *self.times, self.context, *self.rope, *others]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Of all of it."""
        return tuple(tensor.shape for tensor in self.tensors)

    def clone(self) -> ForwardInputs:
        """The same in other memory."""
        cos, sin = self.rope
        camera = None if self.camera is None else replace(self.camera, tokens=self.camera.tokens.clone())
        x, e, e0, context = (tensor.clone() for tensor in (self.x, *self.times, self.context))
        lengths = None if self.lengths is None else self.lengths.clone()
        return ForwardInputs(x, (e, e0), context, camera, (cos.clone(), sin.clone()), lengths)


class ForwardRecorder(Protocol):
    """What records and replays a forward's kernels: see graphs/forward.py."""

    def run(
        self, compute: Callable[[ForwardInputs, ForwardOptions], Tensor], given: ForwardInputs, options: ForwardOptions
    ) -> Tensor: ...


class ForwardOptions(TypedDict, total=False):
    """What the blocks of a forward are given beside the residual stream and its conditioning; any may be left out.

    A host puts entries of its own beside these. All of them go to the attention function."""

    camera_cache: CameraCache | None
    """The camera's scales and shifts and the prompt's keys and values, from the forward before."""
    kv_cache: KeyValueCache
    """A causal model's keys and values of the frames before; x is then its running chunk."""
    sequence_parallel: SequenceParallel
    """The processes that compute the forward together."""
    token_share: TokenShare
    """This process's tokens of it; the model adds them."""
    residuals: Sequence[Residual]
    """The rows of the residual stream, if nobody but the blocks reads it between them; the model adds them."""
    prompt_lengths: Tensor | None
    """How many tokens of each row's prompt are no padding, int32 [rows], if attention passes over that; the model adds
    it."""
    graphs: ForwardRecorder
    """Records and replays a causal model's forwards."""
    timestep: int
    """That of the forward. Asking the tensor on a GPU for it would wait for all that is queued there."""
    times: dict[Hashable, Times]
    """Those of a causal model's few timesteps: making them takes as long as two blocks do."""
    weights: Hashable
    """Tells the weights of this forward, where they lie now, from others."""


NO_OPTIONS = cast(ForwardOptions, MappingProxyType({}))
