"""What the blocks of a forward are given beside the residual stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypedDict, cast

from torch import Tensor

from .cache import CameraCache
from .parallel import SequenceParallel, TokenShare

if TYPE_CHECKING:
    from .kv_cache import KeyValueCache

Rope = tuple[Tensor, Tensor]
"""Cosines and sines of the tokens' positions."""


@dataclass(frozen=True)
class Camera:
    """The embedded camera: `tokens` [1 or rows, tokens, dim]; `cache` may hold the scale and shift made from them."""

    tokens: Tensor
    cache: CameraCache | None = None


class BlockRecorder(Protocol):
    """What repeats recorded blocks: see block_graphs.py."""

    def run(
        self, blocks: Callable[..., Tensor], x: Tensor, e0: Tensor, context: Tensor, camera: Camera | None, rope: Rope,
        options: ForwardOptions,
    ) -> Tensor: ...  # fmt: skip


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
    block_graphs: BlockRecorder
    """Records and replays a causal model's blocks."""


NO_OPTIONS = cast(ForwardOptions, MappingProxyType({}))
