"""Tensors that every step would compute again from the same camera and prompt, kept where the GPU has room."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]

MOST_UNREAD_FILLS = 2
"""A cache that was filled this many times and emptied before anything was read from it stays empty."""


class BlockCache:
    """Two tensors of every block, all computed from one source tensor. Another source takes their place. Where sources
    alternate, nothing is ever read again, and the cache gives up: it stays empty."""

    _source: Tensor | None
    """A copy of the source."""
    _original: tuple[Callable[[], Tensor | None], int | None]
    """A weak reference to the source itself, and how often it had been written to."""
    _blocks: dict[int, Pair]
    _spare: dict[int, Pair]
    """What a steady cache held before it was emptied: the next tensors of a block are written over them."""
    _nbytes: int
    _was_read: bool

    def __init__(self, steady: bool = False) -> None:
        """`steady`: tensors for another source are kept in the same memory, if they have the same shapes."""
        self._unread_fills, self._steady = 0, steady
        self._blocks, self._spare = {}, {}
        self._forget()

    @property
    def addresses(self) -> tuple[tuple[int, ...], ...]:
        """Where the tensors lie, and those that the next ones are written over."""
        return tuple(
            tuple(tensor.data_ptr() for pair in blocks.values() for tensor in pair)
            for blocks in (self._blocks, self._spare)
        )

    @property
    def kept(self) -> Mapping[int, Pair]:
        """Every block's tensors, as far as the cache has them."""
        return dict(self._blocks)

    @property
    def given_up(self) -> bool:
        """Whether it stays empty from now on."""
        return self._unread_fills >= MOST_UNREAD_FILLS

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks' tensors."""
        return self._nbytes

    def attach(self, source: Tensor) -> bool:
        """Empty the cache unless it was filled from a source with the same values. Returns whether the cache is to be
        used. If the source is the very same tensor and was not written to, its values are not compared: comparing
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
        """Free everything, what a subclass has beside this too; returns how many bytes of the blocks' tensors that
        were."""
        freed = self.clear_source()
        self._spare = {}
        return freed

    def clear_source(self) -> int:
        """Free what was computed from the source; returns how many bytes of the blocks' tensors that were."""
        freed = self._nbytes
        if freed and not self._was_read:
            self._unread_fills += 1
        self._forget()
        return freed

    def give_up(self) -> bool:
        """Free everything and stay empty from now on; returns whether that changed anything."""
        changed = self._source is not None
        self._forget()
        self._spare = {}
        self._unread_fills = MOST_UNREAD_FILLS
        return changed

    def get(self, block: int) -> Pair | None:
        """A block's tensors, if the cache has them."""
        cached = self._blocks.get(block)
        self._was_read |= cached is not None
        return cached

    def mark_read(self) -> None:
        """A recording reads the tensors, without `get`."""
        self._was_read = True

    def take(self, blocks: Mapping[int, Pair]) -> None:
        """Kernels that were recorded have computed these blocks' tensors anew, in their own memory."""
        for block in blocks.keys() - self._blocks.keys():
            self._spare.pop(block, None)
            self._blocks[block] = blocks[block]
            self._nbytes += sum(tensor.nbytes for tensor in blocks[block])

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside, the cache may be filled; at the end it has again what it had. The tensors' contents stay as they
        are."""
        fields = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}
        try:
            yield
        finally:
            vars(self).update(fields)

    def put(self, block: int, pair: Pair) -> None:
        """Keep a block's tensors."""
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
    """Keys and values ([rows, text_len, dim] each) of every block's cross-attention."""

    embedded: Tensor | None
    """The embedded prompt of the running step. A block that is called with another prompt does not use the cache."""
    lengths: Tensor | None
    """How many of its tokens are no padding, int32 [rows]."""

    def _forget(self) -> None:
        super()._forget()
        self.embedded = self.lengths = None


class CameraCache(BlockCache):
    """Scale and shift ([rows, tokens, dim] each) that every block computes from the camera; `prompt` has the keys and
    values that it computes from the prompt. They depend on neither timestep nor latent.

    Give each expert a cache of its own, as `options["camera_cache"]`; the model fills it in the first step. Blocks that
    do not fit into `limit_bytes` compute theirs in every step, as without a cache. At 480x832x81 an expert needs 27.9
    GB (`memory.camera_cache_bytes`)."""

    tokens: Tensor | None
    """The camera's embedded tokens [rows, tokens, dim]; the model puts them here."""

    def __init__(self, limit_bytes: float | None = None, steady: bool = False) -> None:
        self.limit_bytes, self.prompt = limit_bytes, PromptCache(steady)
        super().__init__(steady)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks' tensors, the prompt's included."""
        return super().nbytes + self.prompt.nbytes

    def clear(self) -> int:
        """Free everything; returns how many bytes of the blocks' tensors that were."""
        return super().clear() + self.prompt.clear()

    def give_up(self) -> bool:
        """Free everything and stay empty from now on; returns whether that changed anything."""
        self.prompt.give_up()
        return super().give_up()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """See `BlockCache.restored`: the prompt's keys and values too."""
        with self.prompt.restored(), super().restored():
            yield

    def mark_read(self) -> None:
        super().mark_read()
        self.prompt.mark_read()

    def has_room(self, nbytes: int) -> bool:
        """Whether that many bytes more stay within the limit. A cache that was emptied during a step has no room until
        the next step begins."""
        if self._source is None:
            return False
        return self.limit_bytes is None or self.nbytes + nbytes <= self.limit_bytes

    def _forget(self) -> None:
        super()._forget()
        self.tokens = None


def _version(tensor: Tensor) -> int | None:
    """How often the tensor was written to, where torch counts that."""
    return None if tensor.is_inference() else tensor._version


def same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors have the same values in the same dtype, on the same device."""
    return _alike(left, right) and torch.equal(left, right)


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and left.device == right.device
