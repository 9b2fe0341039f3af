"""Types of the inputs and options of the model's forward, and checks of the inputs' shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, cast

import torch
from torch import Tensor

from ..errors import CameraError, InputError
from .cache import CameraCache
from .config import CONTROLS, ModelConfig
from .parallel import ParallelShare, SequenceParallel

if TYPE_CHECKING:
    from .kv.cache import KeyValueCache
    from .layers.residual import Residual

Times = tuple[Tensor, Tensor]
"""The time embedding [B, dim] and the blocks' modulation [B, 6, dim] of a timestep."""

Rope = tuple[Tensor, Tensor]
"""The cosines and sines of the tokens' RoPE angles, [tokens, head_dim / 2] each."""


@dataclass(frozen=True)
class Camera:
    """The camera's embedded tokens [1 or B, tokens, dim], and a cache for the blocks' scales and shifts."""

    tokens: Tensor
    cache: CameraCache | None = None


class ForwardInputs(NamedTuple):
    """The tensors that a forward's kernels read, besides weights and caches.

    x: the latent frames [B, 36, frames, H, W] to which this process's tokens belong.
    context: the embedded prompts [B, tokens, dim].
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
    """A cache of tensors computed from the camera and from the prompt, for use in all denoising steps. Without a cache,
    every step computes these tensors."""
    kv_cache: KeyValueCache
    """The keys and values of a causal model's earlier frames. With this cache, the latent x is the current chunk
    only."""
    sequence_parallel: SequenceParallel
    """The processes that compute the forward together."""
    token_share: ParallelShare
    """This process's share of the tokens, set by the model if several processes compute the forward."""
    residuals: Sequence[Residual]
    """One Residual for each batch element. A Residual may postpone an addition to the next norm. A forward has no
    `residuals` if a host's patch may read the residual stream between blocks."""
    prompt_lengths: Tensor | None
    """The prompts' lengths without padding, int32 [B], set by the model if attention skips padding."""
    graphs: ForwardRecorder
    """The object that records a causal model's forwards as CUDA graphs, and replays them."""
    timestep: int
    """A causal model's timestep as an int, for the cache keys of the option `times`. Reading the value from the
    timestep's tensor would wait for the GPU."""
    times: dict[Hashable, Times]
    """A cache of a causal model's time embeddings, by (`timestep`, batch size, `weights`)."""
    weights: Hashable
    """A hashable identifier of the current weights, not the weights themselves. A host such as ComfyUI changes the
    identifier when it moves or patches weights."""


NO_OPTIONS = cast(ForwardOptions, MappingProxyType({}))


def check_inputs(x: Tensor, timestep: Tensor, context: Tensor, camera: Tensor | None, config: ModelConfig) -> None:
    """Raise CameraError for an invalid camera, and InputError for another input with a wrong shape (see
    `LingBotWorldModel.forward`)."""
    if x.ndim != 5 or 0 in x.shape or x.shape[1] != config.in_dim or x.shape[3] % 2 or x.shape[4] % 2:
        raise InputError(
            f"the latent is {list(x.shape)}; the model takes [batch, {config.in_dim}, frames, height, width] with "
            "even height and width (a video's are multiples of 16)"
        )
    if timestep.ndim != 1 or len(timestep) not in (1, len(x)):
        raise InputError(f"timestep is {list(timestep.shape)}, expected one for each of {len(x)} batch elements")
    if context.ndim != 3 or context.shape[2] != config.text_dim or context.shape[0] not in (1, len(x)):
        raise InputError(f"the prompt is {list(context.shape)}, expected [{len(x)}, tokens, {config.text_dim}]")
    if camera is not None:
        check_camera(camera, x, config)


def check_camera(camera: Tensor, x: Tensor, config: ModelConfig) -> None:
    """Raise CameraError if the model has no camera layers, or the camera's shape does not fit the latent x [B, C, F, H,
    W]."""
    given = f"the camera is {list(camera.shape)}"
    if config.control is None:
        raise CameraError(f"{given}, but this checkpoint has no camera layers: load one that has, or drop the camera")
    channels = config.control_channels
    if camera.ndim != 5 or camera.shape[1] != channels:
        values = camera.shape[1] // 64 if camera.ndim == 5 else 0
        found = f" ({CONTROLS[values]})" if values in CONTROLS else ""
        raise CameraError(
            f"{given}{found}; this checkpoint takes [batch, {channels}, frames, height, width] "
            f"({CONTROLS[config.control]})"
        )
    if camera.shape[2:] != x.shape[2:]:
        raise CameraError(
            f"the camera's frames, height and width are {list(camera.shape[2:])}, the latent's {list(x.shape[2:])}; "
            "make it for the size and length of this video"
        )
    if len(camera) not in (1, len(x)):
        raise CameraError(f"{given}, expected one camera, or one for each of {len(x)} batch elements")
