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
    """The camera's embedded `tokens` [1 or B, tokens, dim], and the `cache` for the scales and shifts that blocks
    compute from them."""

    tokens: Tensor
    cache: CameraCache | None = None


class ForwardInputs(NamedTuple):
    """The tensors that a forward's kernels read, besides weights and caches.

    x: the latent [B, 36, F, H, W] of this process's frames.
    context: the embedded prompts [B, tokens, dim].
    camera: the embedded camera, or None.
    lengths: the prompts' lengths without padding, int32 [B]; None if attention does not skip padding.
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
    """The options that a forward passes to its blocks and its attention. A host such as ComfyUI may add more."""

    camera_cache: CameraCache | None
    """The cache, shared by all steps, of the camera's scales and shifts and of the prompt's keys and values."""
    kv_cache: KeyValueCache
    """The keys and values of a causal model's earlier frames. With this cache, the latent x is the current chunk
    only."""
    sequence_parallel: SequenceParallel
    """The group of processes that compute the forward together."""
    token_share: TokenShare
    """This process's share of the video's tokens, set by the model if several processes compute the forward."""
    residuals: Sequence[Residual]
    """The residual stream of each batch element, set by the model. With a Residual, a block can defer an addition to
    the next block's norm. The option is missing if other code, such as a patch of ComfyUI, reads the stream between
    blocks."""
    prompt_lengths: Tensor | None
    """The number of tokens of each prompt without padding, int32 [B], set by the model if attention skips padding."""
    graphs: ForwardRecorder
    """The recorder that records and replays a causal model's forwards."""
    timestep: int
    """A causal model's current timestep, as an int. The key of an entry in `times` is (timestep, batch size,
    `weights`)."""
    times: dict[Hashable, Times]
    """A cache of the time embedding and the blocks' modulation for each of a causal model's few timesteps. Computing an
    entry takes as long as two blocks."""
    weights: Hashable
    """An identifier of the current weights, which a host such as ComfyUI changes when it moves or patches weights."""


NO_OPTIONS = cast(ForwardOptions, MappingProxyType({}))
