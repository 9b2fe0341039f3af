"""The tensors of weight files and their byte ranges, which the safetensors library does not expose."""

import io
import json
import math
import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..model.quantized import ggml
from ..options import Progress

COMPARED_ROWS = 64

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
_HEADER_LIMIT = 100_000_000
_SIZE_LIMIT = 1 << 48
_READ_BYTES = 1 << 22
_MOST_TENSORS, _LONGEST_NAME = 100_000, 1000


class MappedFile:
    """A weight file, mapped to memory at its first view. Writing to a view changes a private copy, not the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        """The metadata in the header of a safetensors file; empty for other formats."""
        self._file_version = _file_version(path.stat())

    def open(self) -> io.FileIO:
        """Return the opened file. Raise CheckpointError if the file has changed since its header was read."""
        try:
            file = self.path.open("rb", buffering=0)
        except OSError as error:
            raise read_error(self.path, error) from error
        if _file_version(os.fstat(file.fileno())) == self._file_version:
            return file
        file.close()
        raise CheckpointError(f"{self.path}: was replaced or changed since its header was read; run it again")

    @cached_property
    def mapping(self) -> mmap.mmap:
        with self.open() as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def read(self, offset: int, nbytes: int) -> Iterator[memoryview]:
        """Yield bytes of the file from `offset` on, in pieces. Each piece overwrites the previous one. Raise
        CheckpointError if reading fails."""
        buffer = memoryview(bytearray(min(nbytes, _READ_BYTES)))
        with self.open() as file:
            file.seek(offset)
            while nbytes:
                got = read_into(self.path, file, buffer[: min(nbytes, len(buffer))])
                yield buffer[:got]
                nbytes -= got

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the tensor at byte `offset` as a view, or as a copy if the offset is not aligned to the item size."""
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        if offset % dtype.itemsize:
            raw = torch.frombuffer(self.mapping, dtype=torch.uint8, count=count * dtype.itemsize, offset=offset)
            return raw.clone().view(dtype).view(shape)
        return torch.frombuffer(self.mapping, dtype=dtype, count=count, offset=offset).view(shape)


def read_into(path: Path, file: io.FileIO, buffer: memoryview) -> int:
    """Read once into `buffer` and return the number of bytes. Raise CheckpointError for an error or the file's end."""
    try:
        got = file.readinto(buffer)
        size = os.fstat(file.fileno()).st_size if buffer and not got else 0
    except OSError as error:
        raise read_error(path, error) from error
    if buffer and not got:
        raise CheckpointError(
            f"{path}: ends at byte {size:,} while it is being read, expected more; it changed or is truncated"
        )
    return got


def read_error(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read ({error.strerror or error}); check its rights, and the disk")


def _file_version(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


class BlockFormat(NamedTuple):
    """A tensor's block format: GGML's name of the format, and the tensor's shape after decoding."""

    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file.

    dtype, shape: as read; for a GGUF block format, those of the raw bytes.
    source: the file that has the tensor's bytes at `offset`; for a torch.save file, the memory-mapped tensor.
    stored: the dtype in the file if reading rounds to `dtype`, else None.
    block_format: the block format in a GGUF file; None for plain values.
    """

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    source: MappedFile | Tensor = field(repr=False)
    offset: int = 0
    stored: torch.dtype | None = None
    block_format: BlockFormat | None = None

    @property
    def nbytes(self) -> int:
        """The size of the tensor in memory, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def file_dtype(self) -> torch.dtype:
        return self.stored or self.dtype

    @property
    def file_bytes(self) -> int:
        """The size of the tensor in its file, in bytes."""
        return math.prod(self.shape) * self.file_dtype.itemsize

    def rounded(self, dtype: torch.dtype) -> "TensorEntry":
        """Return an entry that is rounded to `dtype` when read, or this entry if it has no wider floats."""
        if not self.dtype.is_floating_point or self.file_dtype.itemsize <= dtype.itemsize:
            return self
        return replace(self, dtype=dtype, stored=self.file_dtype)

    def view(self) -> Tensor:
        """Return a view of the mapped file, or a copy if `dtype` is not the file's or the offset is not aligned."""
        if isinstance(self.source, Tensor):
            return self.source.to(self.dtype)
        return self.source.view(self.offset, self.shape, self.file_dtype).to(self.dtype)


def in_file_order(entries: Iterable[TensorEntry]) -> list[TensorEntry]:
    return sorted(entries, key=lambda entry: (str(entry.path), entry.offset))


def check_scales(entries: Iterable[TensorEntry]) -> None:
    """Raise CheckpointError for NaN or infinity in any float entry of 16 or more bits (scales, tables)."""
    entries = list(entries)
    suspects = [entry for entry in entries if entry.dtype in (torch.float16, torch.bfloat16, torch.float64)]
    for joined in _join_adjacent(entry for entry in entries if entry.dtype == torch.float32):
        first, values = joined[0], joined[0].view()
        if len(joined) > 1 and isinstance(first.source, MappedFile):
            values = first.source.view(first.offset, (sum(entry.nbytes for entry in joined) // 4,), torch.float32)
        suspects += [] if torch.isfinite(values).all() else joined
    _refuse_not_finite([entry for entry in suspects if not torch.isfinite(entry.view()).all()])


def check_all_finite(entries: Collection[TensorEntry], progress: Progress | None = None) -> None:
    """Raise CheckpointError for NaN or infinity in any tensor, including quantized ones. Call `progress` per tensor."""
    bad: list[TensorEntry] = []
    done, total = 0, sum(entry.nbytes for entry in entries)
    for entry in entries:
        done += entry.nbytes
        if progress:
            progress(done, total)
        values = entry.view()
        if entry.block_format is not None:
            values = ggml.decode(values, *entry.block_format, torch.float32)
        if not values.is_floating_point() or not values.numel():
            continue
        values = values.float() if values.itemsize == 1 else values
        if not torch.stack(values.aminmax()).isfinite().all():  # a tenth of the time of isfinite for all values
            bad.append(entry)
    _refuse_not_finite(bad)


def _refuse_not_finite(entries: Sequence[TensorEntry]) -> None:
    file = entries[0].path if entries else ""
    refuse_not_finite(str(file), [entry.name for entry in entries if entry.path == file])


def refuse_not_finite(file: str, names: Sequence[str]) -> None:
    """Raise CheckpointError if `names`, the tensors with NaN or infinity, is not empty."""
    if names:
        raise CheckpointError(
            f"{file}: NaN or infinity in {len(names)} tensors ({', '.join(names[:5])}), expected finite numbers; the "
            "file is corrupt, download it again"
        )


def _join_adjacent(entries: Iterable[TensorEntry]) -> list[list[TensorEntry]]:
    lists: list[list[TensorEntry]] = []
    for entry in in_file_order(entries):
        last = lists[-1][-1] if lists else None
        mapped = isinstance(entry.source, MappedFile)
        if mapped and last and last.source is entry.source and last.offset + last.nbytes == entry.offset:
            lists[-1].append(entry)
        else:
            lists.append([entry])
    return lists


def read_safetensors(path: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file by name. Raise CheckpointError if header and file do not match."""
    try:
        source = MappedFile(path)
        header, data_start = _read_header(path)
        metadata = header.pop("__metadata__", None)
        source.metadata = metadata if isinstance(metadata, dict) else {}
        data_bytes = path.stat().st_size - data_start
    except OSError as error:
        raise read_error(path, error) from error
    entries: dict[str, TensorEntry] = {}
    end = 0
    for name, begin, stop, dtype, shape in sorted(_byte_ranges(path, header), key=lambda found: found[1:3]):
        if begin != end:
            relation = "overlaps" if begin < end else "leaves a gap after"
            raise CheckpointError(
                f"{path}: {name} at byte {begin} {relation} the tensor that ends at byte {end}; "
                "the file is corrupt, download it again"
            )
        entries[name] = TensorEntry(name, path, dtype, shape, source, data_start + begin)
        end = stop
    if end > data_bytes:
        raise CheckpointError(
            f"{path}: truncated or corrupt: {data_start + data_bytes:,} bytes, its header describes "
            f"{data_start + end:,}; download it again"
        )
    if end < data_bytes:
        raise CheckpointError(
            f"{path}: {data_bytes - end:,} bytes after the last tensor; the file is corrupt, download it again"
        )
    return entries


def _read_header(path: Path) -> tuple[dict, int]:
    """Return the header of a safetensors file, and the byte at which its tensors begin."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            raise CheckpointError(
                f"{path}: truncated or corrupt: {size:,} bytes, but a safetensors header of "
                f"{length:,} bytes is announced; download it again"
            )
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the safetensors header is not JSON ({error}); download it again") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the safetensors header is a {type(header).__name__}, expected an object")
    longest = max(map(len, header), default=0)
    if len(header) > _MOST_TENSORS or longest > _LONGEST_NAME:
        raise CheckpointError(
            f"{path}: {len(header):,} tensors, the longest name of {longest:,} characters; expected "
            f"at most {_MOST_TENSORS:,} and {_LONGEST_NAME:,}; this is no model's file"
        )
    return header, 8 + length


def _byte_ranges(path: Path, header: dict) -> Iterator[tuple[str, int, int, torch.dtype, tuple[int, ...]]]:
    for name, item in header.items():
        try:
            dtype, shape, (begin, stop) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
            whole = all(type(number) is int and 0 <= number < _SIZE_LIMIT for number in (*shape, begin, stop))
        except (TypeError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: the header entry of {name} is broken: {item!r:.200}") from error
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise CheckpointError(
                f"{path}: {name} is {dtype!r:.30}, which is not read here, expected one of {', '.join(DTYPES)}; use "
                "another file of this model"
            )
        if not whole or stop - begin != math.prod(shape) * DTYPES[dtype].itemsize:
            raise CheckpointError(
                f"{path}: {name} is {dtype} {list(shape)}, which does not fill its byte range "
                f"[{begin}, {stop}]; the header is corrupt, download the file again"
            )
        yield name, begin, stop, DTYPES[dtype], shape


def are_equal(one: TensorEntry, other: TensorEntry) -> bool:
    """Return whether two tensors are probably equal: same dtype and shape, and equal bytes in evenly spaced rows."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    rows = max(1, one.shape[0] // COMPARED_ROWS) if one.shape else 1
    ours, theirs = (each.view().reshape(each.shape or (1,))[::rows].contiguous() for each in (one, other))
    return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
