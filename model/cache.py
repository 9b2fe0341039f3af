"""Caches of tensors that depend only on the camera or the prompt, not on the denoising step."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]

MAX_UNREAD_FILLS = 2
"""A cache is disabled after this many fills without a read of its tensors."""


class BlockCache:
    """A cache of two tensors for each transformer block, computed from a source tensor such as the camera."""

    _source: Tensor | None
    _original: tuple[Callable[[], Tensor | None], int | None]
    """A weak reference to the tensor passed to `attach`, and the tensor's version counter at that time."""
    _blocks: dict[int, Pair]
    _spare: dict[int, Pair]
    """The old tensors by block, if the cache was created with `steady`. `put` writes new values into them, so that CUDA
    graphs find the values at the same addresses."""
    _nbytes: int
    _was_read: bool

    def __init__(self, steady: bool = False) -> None:
        """Create an empty cache. A `steady` cache reuses the memory of old tensors, so that CUDA graphs find new values
        at the same addresses."""
        self._unread_fills, self._steady = 0, steady
        self._blocks, self._spare = {}, {}
        self._forget()

    @property
    def addresses(self) -> tuple[tuple[int, ...], ...]:
        """The memory addresses of the cached tensors, and of old tensors reserved for new values. CUDA graphs need
        unchanged addresses."""
        return tuple(
            tuple(tensor.data_ptr() for pair in blocks.values() for tensor in pair)
            for blocks in (self._blocks, self._spare)
        )

    @property
    def kept(self) -> Mapping[int, Pair]:
        """A new dictionary of the cached tensors by block index."""
        return dict(self._blocks)

    @property
    def given_up(self) -> bool:
        """Whether the cache is disabled and stays empty."""
        return self._unread_fills >= MAX_UNREAD_FILLS

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def attach(self, source: Tensor) -> bool:
        """Set `source`, the tensor from which the cached tensors are computed. Empty the cache if the source's values
        have changed. Return False if the cache is disabled, else True."""
        original, version = self._original
        # a comparison of the values would wait for the GPU
        is_original = original() is source and version is not None and version == _version(source)
        if self._source is not None and (is_original or same(self._source, source)):
            return True
        self.clear_source()
        if self.given_up:
            self.clear()
            return False
        self._source, self._original = source.clone(), (weakref.ref(source), _version(source))
        return True

    def clear(self) -> int:
        """Free all memory of the cache. Return the size in bytes of the tensors that were cached."""
        freed = self.clear_source()
        self._spare = {}
        return freed

    def clear_source(self) -> int:
        """Forget the cached tensors and the tensor from which they were computed. Return the size in bytes of the
        cached tensors, also if the cache is `steady` and retains their memory for later values."""
        freed = self._nbytes
        if freed and not self._was_read:
            self._unread_fills += 1
        self._forget()
        return freed

    def give_up(self) -> bool:
        """Disable the cache, and free its memory. Return True if a source tensor was set: a forward that failed may
        then be repeated."""
        changed = self._source is not None
        self._forget()
        self._spare = {}
        self._unread_fills = MAX_UNREAD_FILLS
        return changed

    def get(self, block: int) -> Pair | None:
        cached = self._blocks.get(block)
        self._was_read |= cached is not None
        return cached

    def mark_read(self) -> None:
        """Mark the cached tensors as read. Call this after the replay of a CUDA graph, which reads them without
        `get`."""
        self._was_read = True

    def take(self, blocks: Mapping[int, Pair]) -> None:
        """Add tensors that the replay of a CUDA graph has computed, without copying them. Skip blocks that are already
        in the cache."""
        for block in blocks.keys() - self._blocks.keys():
            self._spare.pop(block, None)
            self._blocks[block] = blocks[block]
            self._nbytes += sum(tensor.nbytes for tensor in blocks[block])

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context manager that restores the cache's contents on exit. Values overwritten in place are not
        restored."""
        fields = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}
        try:
            yield
        finally:
            vars(self).update(fields)

    def put(self, block: int, pair: Pair) -> None:
        """Cache a block's two tensors. If the block has old tensors of the same shapes, dtypes and devices, copy the
        new values into those. Else cache `pair` itself."""
        spare = self._spare.pop(block, None)
        if spare is not None and all(map(_alike, spare, pair)):
            pair = spare[0].copy_(pair[0]), spare[1].copy_(pair[1])
        self._blocks[block] = pair
        self._nbytes += sum(tensor.nbytes for tensor in pair)

    def _forget(self) -> None:
        self._source, self._original = None, (lambda: None, None)
        if self._steady:
            self._spare |= self._blocks
        self._blocks, self._nbytes, self._was_read = {}, 0, False


class PromptCache(BlockCache):
    """A cache of the prompt's keys and values for each block's cross-attention, [B, tokens, dim] each."""

    embedded: Tensor | None
    """The embedded prompt [B, tokens, dim] that all steps share. The cached keys and values are valid only for this
    tensor object."""
    lengths: Tensor | None
    """The number of tokens of each prompt without padding, int32 [B]. None if unset, or if attention includes
    padding."""

    def _forget(self) -> None:
        super()._forget()
        self.embedded = self.lengths = None


class CameraCache(BlockCache):
    """A cache of each block's scale and shift from the camera, [1 or B, tokens, dim] each. The base model's two experts
    must not share a cache.

    prompt: the cache of the prompt's keys and values.
    limit_bytes: the largest size of both caches together; None means no limit.
    """

    tokens: Tensor | None
    """The camera's embedded tokens [1 or B, tokens, dim]; None until the model stores them."""

    def __init__(self, limit_bytes: float | None = None, steady: bool = False) -> None:
        self.limit_bytes, self.prompt = limit_bytes, PromptCache(steady)
        super().__init__(steady)

    @property
    def nbytes(self) -> int:
        """The size in bytes of the tensors in this cache and in the prompt's cache."""
        return super().nbytes + self.prompt.nbytes

    def clear(self) -> int:
        return super().clear() + self.prompt.clear()

    def give_up(self) -> bool:
        self.prompt.give_up()
        return super().give_up()

    @contextmanager
    def restored(self) -> Iterator[None]:
        with self.prompt.restored(), super().restored():
            yield

    def mark_read(self) -> None:
        super().mark_read()
        self.prompt.mark_read()

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more bytes fit within `limit_bytes`. False if no camera is attached."""
        if self._source is None:
            return False
        return self.limit_bytes is None or self.nbytes + nbytes <= self.limit_bytes

    def _forget(self) -> None:
        super()._forget()
        self.tokens = None


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def same(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype, device and values."""
    return _alike(left, right) and torch.equal(left, right)


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
