"""One tensor of a weight file: where its bytes lie, without reading them."""

import math
import mmap
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor


@dataclass
class MappedFile:
    """A weight file, mapped into memory when its bytes are first looked at.

    Pages come from the page cache and count as file memory. A write to a view lands in a private copy of its page, so
    that nobody can change the file, or crash by trying to.
    """

    path: Path

    @cached_property
    def mapping(self) -> mmap.mmap:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor at byte `offset`, zero-copy unless it is not aligned to its own size."""
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        if offset % dtype.itemsize:
            raw = torch.frombuffer(self.mapping, dtype=torch.uint8, count=count * dtype.itemsize, offset=offset)
            return raw.clone().view(dtype).view(shape)
        return torch.frombuffer(self.mapping, dtype=dtype, count=count, offset=offset).view(shape)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file. `source` is the file with the tensor at byte `offset`, or, for torch.save files, the mapped
    tensor itself."""

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    source: MappedFile | Tensor = field(repr=False)
    offset: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self) -> Tensor:
        """The tensor as a view of the mapped file."""
        if isinstance(self.source, Tensor):
            return self.source
        return self.source.view(self.offset, self.shape, self.dtype)
