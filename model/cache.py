"""Caches of tensors that depend on the camera and the prompt alone, so that every step would recompute them."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]

MOST_UNREAD_FILLS = 2
"""The number of times a cache may be filled and emptied without a read. After that it stays empty."""


class BlockCache:
    """A cache of two tensors for every block, all computed from one source tensor.

    A new source replaces the cached tensors. If sources alternate, no cached tensor is ever read again, so the cache
    gives up and stays empty."""

    _source: Tensor | None
    """A copy of the source."""
    _original: tuple[Callable[[], Tensor | None], int | None]
    """A weak reference to the original source tensor, and its version counter at the time the cache was filled."""
    _blocks: dict[int, Pair]
    _spare: dict[int, Pair]
    """The tensors that a steady cache held before it was emptied: a block's next tensors are written over them."""
    _nbytes: int
    _was_read: bool

    def __init__(self, steady: bool = False) -> None:
        """Create an empty cache. If `steady`, the tensors keep their memory addresses when the source changes, as CUDA
        graphs
        require: new tensors overwrite the old ones if shapes, dtypes and devices match."""
        self._unread_fills, self._steady = 0, steady
        self._blocks, self._spare = {}, {}
        self._forget()

    @property
    def addresses(self) -> tuple[tuple[int, ...], ...]:
        """The addresses of the cached tensors, and of the spare tensors that will be overwritten next."""
        return tuple(
            tuple(tensor.data_ptr() for pair in blocks.values() for tensor in pair)
            for blocks in (self._blocks, self._spare)
        )

    @property
    def kept(self) -> Mapping[int, Pair]:
        """The cached tensors by block index, as a copy."""
        return dict(self._blocks)

    @property
    def given_up(self) -> bool:
        """True once the cache has given up and stays empty."""
        return self._unread_fills >= MOST_UNREAD_FILLS

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks' tensors."""
        return self._nbytes

    def attach(self, source: Tensor) -> bool:
        """Empty the cache unless it was filled from a source with the same values. Return whether to use the cache.

        If the source is the very same tensor and was not written to, the values are not compared, because a comparison
        would wait for the GPU."""
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
        """Free all memory, including a subclass's own; return the bytes of the blocks' tensors that were freed."""
        freed = self.clear_source()
        self._spare = {}
        return freed

    def clear_source(self) -> int:
        """Free the tensors computed from the source; return the bytes of the blocks' tensors that were freed."""
        freed = self._nbytes
        if freed and not self._was_read:
            self._unread_fills += 1
        self._forget()
        return freed

    def give_up(self) -> bool:
        """Free all memory and stay empty from now on; return whether that changed anything."""
        changed = self._source is not None
        self._forget()
        self._spare = {}
        self._unread_fills = MOST_UNREAD_FILLS
        return changed

    def get(self, block: int) -> Pair | None:
        """Return a block's tensors, or None if they are not cached."""
        cached = self._blocks.get(block)
        self._was_read |= cached is not None
        return cached

    def mark_read(self) -> None:
        """Record that a CUDA graph reads the tensors without calling `get`."""
        self._was_read = True

    def take(self, blocks: Mapping[int, Pair]) -> None:
        """Add the tensors of these blocks, which recorded kernels have recomputed in the graph's own memory."""
        for block in blocks.keys() - self._blocks.keys():
            self._spare.pop(block, None)
            self._blocks[block] = blocks[block]
            self._nbytes += sum(tensor.nbytes for tensor in blocks[block])

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the current entries when the context ends, so that the caller may fill the cache inside.

        The values of the tensors are not restored."""
        fields = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}
        try:
            yield
        finally:
            vars(self).update(fields)

    def put(self, block: int, pair: Pair) -> None:
        """Cache a block's tensors, in the spare memory if the shapes, dtypes and devices match."""
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
    """A cache of the keys and values ([B, text_len, dim] each) of every block's cross-attention."""

    embedded: Tensor | None
    """The embedded prompt of the current step. A block that is called with another prompt does not use the cache."""
    lengths: Tensor | None
    """The number of the prompt's tokens that are not padding, int32 [B]."""

    def _forget(self) -> None:
        super()._forget()
        self.embedded = self.lengths = None


class CameraCache(BlockCache):
    """A cache of the scale and shift ([B, tokens, dim] each) that every block computes from the camera.

    `prompt` caches the keys and values of the prompt. All of them depend on neither timestep nor latent. Pass each
    expert its own cache as `options["camera_cache"]`; the model fills it in the first step. Blocks that do not fit into
    `limit_bytes` recompute their tensors in every step. At 480x832x81 an expert needs 27.9 GB
    (`memory.camera_cache_bytes`)."""

    tokens: Tensor | None
    """The camera's embedded tokens [B, tokens, dim]; the model stores them here."""

    def __init__(self, limit_bytes: float | None = None, steady: bool = False) -> None:
        self.limit_bytes, self.prompt = limit_bytes, PromptCache(steady)
        super().__init__(steady)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks' tensors, including the prompt's."""
        return super().nbytes + self.prompt.nbytes

    def clear(self) -> int:
        """Free all memory; return the bytes of the blocks' tensors that were freed."""
        return super().clear() + self.prompt.clear()

    def give_up(self) -> bool:
        """Free all memory and stay empty from now on; return whether that changed anything."""
        self.prompt.give_up()
        return super().give_up()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the prompt's keys and values too: see `BlockCache.restored`."""
        with self.prompt.restored(), super().restored():
            yield

    def mark_read(self) -> None:
        super().mark_read()
        self.prompt.mark_read()

    def has_room(self, nbytes: int) -> bool:
        """Return whether `nbytes` more bytes stay within the limit.

        A cache that was emptied during a step has no room until the next step begins."""
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
    """Return whether two tensors have the same values and dtype on the same device."""
    return _alike(left, right) and torch.equal(left, right)


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
