"""Caches of tensors that depend only on the camera or the prompt, so that they are not computed again in every step."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]

MOST_UNREAD_FILLS = 2
"""A cache is disabled after this many times in which it was filled, and emptied again without a read of its tensors. It
would cost time and memory without saving any."""


class BlockCache:
    """A cache of two tensors for each transformer block, which depend only on a source tensor, such as the camera.
    `attach` empties the cache if the source changes. A cache with tensors that are not read is disabled (see
    MOST_UNREAD_FILLS)."""

    _source: Tensor | None
    """A copy of the source tensor, with which `attach` compares the next source; None without a source."""
    _original: tuple[Callable[[], Tensor | None], int | None]
    """A weak reference to the original source tensor, and the tensor's version counter when `attach` stored it (see
    `_version`)."""
    _blocks: dict[int, Pair]
    _spare: dict[int, Pair]
    """The tensors, by block, that a `steady` cache held before it was emptied. New tensors are copied into them."""
    _nbytes: int
    _was_read: bool

    def __init__(self, steady: bool = False) -> None:
        """Create an empty cache. In a `steady` cache the tensors keep their addresses, as CUDA graphs require: tensors
        of a new source are copied into old tensors of the same shape, dtype and device."""
        self._unread_fills, self._steady = 0, steady
        self._blocks, self._spare = {}, {}
        self._forget()

    @property
    def addresses(self) -> tuple[tuple[int, ...], ...]:
        """Two tuples: the memory addresses of the cached tensors, and those of the spare tensors, which `put` will
        overwrite."""
        return tuple(
            tuple(tensor.data_ptr() for pair in blocks.values() for tensor in pair)
            for blocks in (self._blocks, self._spare)
        )

    @property
    def kept(self) -> Mapping[int, Pair]:
        """The cached tensors by block index, as a new dictionary."""
        return dict(self._blocks)

    @property
    def given_up(self) -> bool:
        """Whether the cache is disabled, so that it stays empty."""
        return self._unread_fills >= MOST_UNREAD_FILLS

    @property
    def nbytes(self) -> int:
        """The size in bytes of the cached tensors."""
        return self._nbytes

    def attach(self, source: Tensor) -> bool:
        """Set the source, and empty the cache if the source's values have changed. Return False if the cache is
        disabled, else True.

        Values are not compared if `source` is the same tensor object as before and has not been written to. A
        comparison would wait for the GPU.
        """
        original, version = self._original
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
        """Remove the source and free the cached and the spare tensors. Return the size in bytes of the cached tensors
        alone."""
        freed = self.clear_source()
        self._spare = {}
        return freed

    def clear_source(self) -> int:
        """Remove the source and all cached tensors, and return the bytes of the cached tensors. A `steady` cache keeps
        their memory to reuse it. If no cached tensor has been read, the removal counts towards MOST_UNREAD_FILLS."""
        freed = self._nbytes
        if freed and not self._was_read:
            self._unread_fills += 1
        self._forget()
        return freed

    def give_up(self) -> bool:
        """Disable the cache and free its memory. Return True if the cache was in use (had a source), else False."""
        changed = self._source is not None
        self._forget()
        self._spare = {}
        self._unread_fills = MOST_UNREAD_FILLS
        return changed

    def get(self, block: int) -> Pair | None:
        """Return the two cached tensors of a block, or None if they are not cached."""
        cached = self._blocks.get(block)
        self._was_read |= cached is not None
        return cached

    def mark_read(self) -> None:
        """Count the cached tensors as read. Call this after the replay of a CUDA graph, which reads them without `get`.
        Otherwise they would count as unread, and the cache would be disabled (see MOST_UNREAD_FILLS)."""
        self._was_read = True

    def take(self, blocks: Mapping[int, Pair]) -> None:
        """Add tensors, by block index, that the replay of a CUDA graph has computed. Blocks with cached tensors are
        skipped. The tensors are not copied and stay in the graph's memory."""
        for block in blocks.keys() - self._blocks.keys():
            self._spare.pop(block, None)
            self._blocks[block] = blocks[block]
            self._nbytes += sum(tensor.nbytes for tensor in blocks[block])

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context manager that restores the cache's source and entries when it exits. Values that were overwritten in
        place, in a tensor of the cache, are not restored."""
        fields = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}
        try:
            yield
        finally:
            vars(self).update(fields)

    def put(self, block: int, pair: Pair) -> None:
        """Cache the two tensors of a block. If the block has spare tensors with the same shapes, dtypes and devices,
        the values are copied into the spare tensors. Otherwise the tensors themselves are stored."""
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
    """A cache of each block's keys and values [B, tokens, dim] of the prompt for cross-attention."""

    embedded: Tensor | None
    """The current step's embedded prompt [B, tokens, dim]. The cached keys and values are used only for this tensor
    object, not for another tensor with equal values."""
    lengths: Tensor | None
    """The number of tokens of each prompt without padding, int32 [B]."""

    def _forget(self) -> None:
        super()._forget()
        self.embedded = self.lengths = None


class CameraCache(BlockCache):
    """A cache of the scale and shift, [1 or B, tokens, dim] each, that every block computes from the camera. Its
    attribute `prompt` is a PromptCache for the prompt's keys and values.

    `limit_bytes` limits the size of both caches together; None means no limit. Tensors beyond the limit are not cached,
    but computed in every step. For 81 frames of 832x480 pixels an expert's tensors take 27.9 GB
    (`memory.camera_cache_bytes`). Each of the base model's two experts needs its own cache, passed to the model as
    `options["camera_cache"]`.
    """

    tokens: Tensor | None
    """The camera's embedded tokens [1 or B, tokens, dim], stored by the model; None until then."""

    def __init__(self, limit_bytes: float | None = None, steady: bool = False) -> None:
        self.limit_bytes, self.prompt = limit_bytes, PromptCache(steady)
        super().__init__(steady)

    @property
    def nbytes(self) -> int:
        """The size in bytes of the cached tensors, including the prompt's keys and values."""
        return super().nbytes + self.prompt.nbytes

    def clear(self) -> int:
        """Free all memory of this cache and of `prompt`, and return the bytes of the cached tensors of both."""
        return super().clear() + self.prompt.clear()

    def give_up(self) -> bool:
        """Disable this cache and the prompt's, and free their memory. Return True if this cache was in use (had a
        camera as its source), else False."""
        self.prompt.give_up()
        return super().give_up()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context manager that restores the entries of this cache and of the prompt's when it exits (see
        `BlockCache.restored`)."""
        with self.prompt.restored(), super().restored():
            yield

    def mark_read(self) -> None:
        super().mark_read()
        self.prompt.mark_read()

    def has_room(self, nbytes: int) -> bool:
        """Return whether `nbytes` more bytes fit within `limit_bytes`. Also return False if no camera is attached, for
        example after `clear`."""
        if self._source is None:
            return False
        return self.limit_bytes is None or self.nbytes + nbytes <= self.limit_bytes

    def _forget(self) -> None:
        super()._forget()
        self.tokens = None


def _version(tensor: Tensor) -> int | None:
    """Return the tensor's version counter; None for an inference tensor."""
    return None if tensor.is_inference() else tensor._version


def same(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype, device and values."""
    return _alike(left, right) and torch.equal(left, right)


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
