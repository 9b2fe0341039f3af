"""What blocks make of things that stay the same from step to step, kept on GPUs with room for it."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]

PATIENCE = 2
"""A cache that was filled this often for nothing stays empty."""


class BlockCache:
    """Two tensors of every block, made from one source. Another source empties it; where sources take turns, so that
    nothing is ever read again, it gives up (`useful`)."""

    def __init__(self):
        self._wasted = 0
        self._forget()

    @property
    def useful(self) -> bool:
        """Whether there is any point in filling it."""
        return self._wasted < PATIENCE

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks' tensors."""
        return self._nbytes

    def attach(self, source: Tensor) -> bool:
        """Keep what is held if it was made from this source, by value; else forget it. Returns whether the cache is
        to be used. The same tensor, not written to since, is not compared: that would wait for the GPU."""
        if self._source is not None and (self._untouched(source) or _same(self._source, source)):
            return True
        self.clear()
        if self.useful:
            self._source, self._given = source.clone(), (weakref.ref(source), _version(source))
        return self.useful

    def _untouched(self, source: Tensor) -> bool:
        given, version = self._given
        return given() is source and version is not None and version == _version(source)

    def clear(self) -> int:
        """Free everything held; returns how many bytes of the blocks' tensors that were."""
        freed = self._nbytes
        if freed and not self._read:
            self._wasted += 1
        self._forget()
        return freed

    def give_up(self) -> bool:
        """Free everything and stay empty from now on; returns whether that changed anything."""
        changed = self._source is not None
        self._forget()
        self._wasted = PATIENCE
        return changed

    def get(self, block: int) -> Pair | None:
        """A block's tensors, if they are held."""
        kept = self._blocks.get(block)
        self._read |= kept is not None
        return kept

    def put(self, block: int, pair: Pair) -> None:
        """Hold a block's tensors."""
        self._blocks[block] = pair
        self._nbytes += sum(tensor.nbytes for tensor in pair)

    def _forget(self) -> None:
        self._source: Tensor | None = None
        self._given: tuple[Callable[[], Tensor | None], int | None] = (lambda: None, None)
        self._blocks: dict[int, Pair] = {}
        self._read, self._nbytes = False, 0


class PromptCache(BlockCache):
    """Keys and values ([rows, text_len, dim] each) of every block's cross-attention. `embedded` is the prompt of the
    running step as the model embedded it: a block that is given another one has to do without."""

    def _forget(self) -> None:
        super()._forget()
        self.embedded: Tensor | None = None


class CameraCache(BlockCache):
    """Scale and shift ([rows, tokens, dim] each) of every block, for the camera they were made from; beside them, in
    `prompt`, what the blocks make of the prompt.

    They depend on neither timestep nor latent. Give one cache per expert, as `options["camera_cache"]`; the model fills
    it in the first step. Once `limit_bytes` are held, further blocks are computed in every step as without a cache. At
    480x832x81 an expert needs 27.9 GB (`memory.camera_cache_bytes`)."""

    def __init__(self, limit_bytes: float | None = None):
        self.limit_bytes, self.prompt = limit_bytes, PromptCache()
        super().__init__()

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks' tensors, the prompt's included."""
        return super().nbytes + self.prompt.nbytes

    def clear(self) -> int:
        """Free everything held; returns how many bytes of the blocks' tensors that were."""
        return super().clear() + self.prompt.clear()

    def give_up(self) -> bool:
        """Free everything and stay empty from now on; returns whether that changed anything."""
        self.prompt.give_up()
        return super().give_up()

    def has_room(self, nbytes: int) -> bool:
        """Whether that many bytes more stay within the limit. A cache that was emptied in the middle of a step has no
        room before the next one."""
        if self._source is None:
            return False
        return self.limit_bytes is None or self.nbytes + nbytes <= self.limit_bytes

    def _forget(self) -> None:
        super()._forget()
        self.tokens: Tensor | None = None  # the camera's, [rows, tokens, dim]; put here by the model


def _version(tensor: Tensor) -> int | None:
    """How often the tensor was written to, where torch counts that."""
    return None if tensor.is_inference() else tensor._version


def _same(left: Tensor, right: Tensor) -> bool:
    alike = left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
    return alike and torch.equal(left, right)
