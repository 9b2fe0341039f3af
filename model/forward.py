"""Types of the inputs and options of the model's forward, which the transformer blocks receive."""

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
"""The time embedding [B, dim] and the blocks' modulation [B, 6, dim] of a timestep."""

Rope = tuple[Tensor, Tensor]
"""The cosines and sines of the tokens' RoPE angles, [tokens, head_dim / 2] each."""


@dataclass(frozen=True)
class Camera:
    """The camera's embedded `tokens` [1 or B, tokens, dim], and a `cache` for the scale and shift that blocks compute
    from them."""

    tokens: Tensor
    cache: CameraCache | None = None


class ForwardInputs(NamedTuple):
    """The tensors that a forward's kernels read, besides weights and caches.

    `x` is the latent [B, 36, F, H, W] of this process's frames. `times` are the time embedding [B, dim] and the blocks'
    modulation [B, 6, dim]. `context` is the embedded prompts [B, tokens, dim]. `camera` is the embedded camera, or None
    without a camera. `rope` is the cosines and sines of the tokens' angles, [tokens, head_dim / 2] each. `lengths`
    (int32 [B]) are the prompts' lengths without padding, or None if attention does not skip padding.
    """

    x: Tensor
    times: Times
    context: Tensor
    camera: Camera | None
    rope: Rope
    lengths: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All input tensors, always in the same order."""
        others = [] if self.camera is None else [self.camera.tokens]
        if self.lengths is not None:
            others.append(self.lengths)
        return [self.x, *self.times, self.context, *self.rope, *others]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """The shape of each tensor in `tensors`."""
        return tuple(tensor.shape for tensor in self.tensors)

    def clone(self) -> ForwardInputs:
        """Return a copy of the inputs in new memory."""
        cos, sin = self.rope
        camera = None if self.camera is None else replace(self.camera, tokens=self.camera.tokens.clone())
        x, e, e0, context = (tensor.clone() for tensor in (self.x, *self.times, self.context))
        lengths = None if self.lengths is None else self.lengths.clone()
        return ForwardInputs(x, (e, e0), context, camera, (cos.clone(), sin.clone()), lengths)


class ForwardRecorder(Protocol):
    """The interface of an object that records a forward's GPU kernels and replays them (see graphs/forward.py)."""

    def run(
        self, compute: Callable[[ForwardInputs, ForwardOptions], Tensor], given: ForwardInputs, options: ForwardOptions
    ) -> Tensor: ...


class ForwardOptions(TypedDict, total=False):
    """The options that a forward passes to its blocks and to the attention function.

    All are optional. A host such as ComfyUI may add more.
    """

    camera_cache: CameraCache | None
    """The cache of the camera's scales and shifts, and of the prompt's keys and values, which all steps share."""
    kv_cache: KeyValueCache
    """The cache of the keys and values of a causal model's earlier frames.

    If it is set, the latent x contains only the current chunk.
    """
    sequence_parallel: SequenceParallel
    """The group of processes that compute the forward together."""
    token_share: TokenShare
    """This process's share of the video's tokens, if several processes compute the forward. The model sets this
    option."""
    residuals: Sequence[Residual]
    """The residual stream of each batch element, set by the model.

    With this option, a block can defer an addition to the next block's norm. The option is missing if other code, such
    as a patch of ComfyUI, reads the residual stream between blocks.
    """
    prompt_lengths: Tensor | None
    """The number of tokens of each prompt without padding, int32 [B]. The model sets it if attention skips padding."""
    graphs: ForwardRecorder
    """The recorder that records and replays a causal model's forwards."""
    timestep: int
    """The current timestep of a causal model. With the batch size and `weights` it is the key of an entry in
    `times`."""
    times: dict[Hashable, Times]
    """The cached time embeddings of a causal model, which has few timesteps.

    Without the cache, each time embedding would take as long as two blocks.
    """
    weights: Hashable
    """An identifier of the current weights and their memory addresses, set by a host such as ComfyUI.

    A new identifier means that the host has moved or patched weights.
    """


NO_OPTIONS = cast(ForwardOptions, MappingProxyType({}))
