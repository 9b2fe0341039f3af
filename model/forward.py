"""The inputs and options that a forward passes to its blocks, besides the residual stream."""

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
    """The embedded camera: `tokens` [1 or B, tokens, dim]; `cache` may hold the scale and shift computed from them."""

    tokens: Tensor
    cache: CameraCache | None = None


class ForwardInputs(NamedTuple):
    """The tensors that a forward's kernels read, besides weights and caches.

    `x` is the latent [B, 36, F, H, W] of this process's frames, `times` the time embedding [B, dim] and the blocks'
    modulation [B, 6, dim]. `context` are the embedded prompts [B, text_len, dim]. `lengths`, int32 [B], are the
    prompts' lengths without padding; None if attention does not skip the padding."""

    x: Tensor
    times: Times
    context: Tensor
    camera: Camera | None
    rope: Rope
    lengths: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """The input tensors in a fixed order."""
        others = [] if self.camera is None else [self.camera.tokens]
        if self.lengths is not None:
            others.append(self.lengths)
        return [self.x, *self.times, self.context, *self.rope, *others]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shapes of `tensors`."""
        return tuple(tensor.shape for tensor in self.tensors)

    def clone(self) -> ForwardInputs:
        """Return a copy of the inputs in new memory."""
        cos, sin = self.rope
        camera = None if self.camera is None else replace(self.camera, tokens=self.camera.tokens.clone())
        x, e, e0, context = (tensor.clone() for tensor in (self.x, *self.times, self.context))
        lengths = None if self.lengths is None else self.lengths.clone()
        return ForwardInputs(x, (e, e0), context, camera, (cos.clone(), sin.clone()), lengths)


class ForwardRecorder(Protocol):
    """The interface of an object that records and replays a forward's kernels: see graphs/forward.py."""

    def run(
        self, compute: Callable[[ForwardInputs, ForwardOptions], Tensor], given: ForwardInputs, options: ForwardOptions
    ) -> Tensor: ...


class ForwardOptions(TypedDict, total=False):
    """The options that a forward passes to its blocks and to the attention function. All are optional, and a host may
    add others."""

    camera_cache: CameraCache | None
    """The camera's scales and shifts and the prompt's keys and values, from the previous forward."""
    kv_cache: KeyValueCache
    """The keys and values of a causal model's earlier frames; x is then the current chunk."""
    sequence_parallel: SequenceParallel
    """The processes that compute the forward together."""
    token_share: TokenShare
    """This process's share of the tokens; the model sets it."""
    residuals: Sequence[Residual]
    """The residual stream of each batch element. The model sets it if no host code reads the stream between blocks."""
    prompt_lengths: Tensor | None
    """The number of tokens of each batch element's prompt that are not padding, int32 [B]. The model sets it if
    attention skips the padding."""
    graphs: ForwardRecorder
    """The recorder that records and replays a causal model's forwards."""
    timestep: int
    """The timestep as an int: reading it from the GPU would synchronize."""
    times: dict[Hashable, Times]
    """The cached time embeddings of a causal model's few timesteps: computing one takes as long as two blocks."""
    weights: Hashable
    """An identifier of this forward's weights at their current addresses."""


NO_OPTIONS = cast(ForwardOptions, MappingProxyType({}))
