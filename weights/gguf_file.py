"""Reading of GGUF files by the gguf library: tensors with ComfyUI-GGUF's names, and weights in GGML's blocks."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, require
from ..model.quantized import ggml
from ..model.quantized.parameters import BlockParameter, frozen_parameter, load_block_layout
from .tensors import BlockFormat, MappedFile, TensorEntry

MAGIC = b"GGUF"
PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The torch dtypes of GGML's types without blocks."""
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
_LONGEST_ARRAY, _MOST_TENSORS, _MOST_STRINGS = 64, 100_000, 2_000_000


@dataclass(frozen=True)
class BlockWeight:
    """A weight in a block format of GGML.

    packed: the file entry of its bytes.
    kind: the format's name, such as Q4_K.
    shape: the shape after decoding.
    """

    packed: TensorEntry
    kind: str
    shape: tuple[int, ...]

    @property
    def quant_type(self) -> str:
        return self.kind

    @property
    def entries(self) -> list[TensorEntry]:
        return [self.packed]

    def rows(self, rows: Tensor) -> Tensor:
        """Read and decode the rows with indices `rows` (int64 [n]) from the mapped file, as float32 [n, width]."""
        return ggml.decode_rows(self.packed.view(), self.kind, self.shape, rows)

    def parameter(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> torch.nn.Parameter:
        """Return a frozen parameter over the file's tensors: a QuantizedTensor that decodes to `dtype`, or a
        BlockParameter if `dtype` is None."""
        packed = tensors[self.packed.name]
        if dtype is None:
            return BlockParameter.of(packed, self.kind, self.shape)
        return frozen_parameter(load_block_layout().block_tensor(packed, self.kind, self.shape, dtype))


def read_gguf(path: Path) -> dict[str, TensorEntry]:
    """Return a GGUF file's tensors by name. Raise CheckpointError if it is damaged, DependencyError without gguf."""
    source, reader_class = MappedFile(path), _reader_class()
    try:
        reader = reader_class(path)
        found = [_describe(tensor, reader) for tensor in reader.tensors]
        start, size, padding = int(reader.data_offset), len(reader.data), int(reader.alignment)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged header can raise anything
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        raise CheckpointError(
            f"{path}: cannot be read as GGUF ({reason}): truncated or corrupt; download it again"
        ) from error
    if not found:
        raise CheckpointError(f"{path}: a GGUF file with no tensors in it; download it again")
    entries = _check_entries(path, source, found, start)
    last = max(entries.values(), key=lambda entry: entry.offset)
    if (after := size - last.offset - last.nbytes) >= padding:
        raise CheckpointError(f"{path}: {after:,} bytes after the last tensor; the file is corrupt, download it again")
    return entries


def _describe(tensor: Any, reader: Any) -> tuple[str, str, tuple[int, ...], tuple[int, ...], int]:
    """Return a tensor's name, GGML type, shape in the file, shape after decoding, and byte offset in the file."""
    name, stored = str(tensor.name), tuple(int(size) for size in reversed(tensor.shape.tolist()))
    field = reader.get_field(ORIGINAL_SHAPE + name)
    shape = stored if field is None else tuple(int(size) for size in field.contents())
    return name, str(tensor.tensor_type.name), stored, shape, int(tensor.data_offset)


def _check_entries(path: Path, source: MappedFile, found: list, start: int) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    end = start
    for name, kind, stored, shape, offset in sorted(found, key=lambda each: each[4]):
        if kind not in ggml.BLOCKS and kind not in PLAIN:
            expected = ", ".join((*PLAIN, *ggml.BLOCKS))
            raise CheckpointError(
                f"{path}: {name} is {kind}, which is not decoded here, expected one of {expected}; use another "
                "GGUF file of this model"
            )
        count, block = math.prod(stored), ggml.BLOCKS.get(kind)
        if math.prod(shape) != count or min(shape, default=1) < 1 or (block and stored[-1] % block.values):
            raise CheckpointError(
                f"{path}: {name} is {kind} {list(stored)}, of shape {list(shape)}, which do not agree; the header is "
                "corrupt, download the file again"
            )
        nbytes = count // block.values * block.nbytes if block else count * PLAIN[kind].itemsize
        if offset < end:
            raise CheckpointError(
                f"{path}: {name} at byte {offset:,} overlaps the tensor before it; the header is corrupt, download the "
                "file again"
            )
        end = offset + nbytes
        if block:
            block_format = BlockFormat(kind, shape)
            entries[name] = TensorEntry(name, path, torch.uint8, (nbytes,), source, offset, block_format=block_format)
        else:
            entries[name] = TensorEntry(name, path, PLAIN[kind], shape, source, offset)
    return entries


@cache
def _reader_class() -> type:
    """Return gguf's reader class, changed to skip long arrays, and to raise ValueError for a header that exceeds the
    file."""
    gguf: Any = require("gguf")
    array, string = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING

    class HeaderReader(gguf.GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            got = super()._get(offset, dtype, count, override_order)
            if len(got) != int(count):
                raise ValueError(f"{int(count):,} values at byte {int(offset):,}, past the end of the file")
            return got

        def _build_tensor_info(self, offs: int, count: int) -> Any:
            if self.byte_order != "I":
                raise ValueError("its numbers are big-endian, expected little-endian")
            if count > _MOST_TENSORS:
                raise ValueError(f"{int(count):,} tensors, expected at most {_MOST_TENSORS:,}")
            return super()._build_tensor_info(offs, count)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type != array:
                return super()._get_field_parts(orig_offs, raw_type)
            kind, count = struct.unpack_from("<IQ", self.data, orig_offs)
            if kind == array or count > len(self.data) or (kind == string and count > _MOST_STRINGS):
                raise ValueError(f"a list of {count:,} values of type {kind} in its header")
            if count <= _LONGEST_ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            nbytes = self._end_of_array(orig_offs + 12, kind, count) - orig_offs
            return nbytes, [], [], [array, gguf.GGUFValueType(kind)]

        def _end_of_array(self, at: int, kind: int, count: int) -> int:
            if kind != string:
                return at + count * self.gguf_scalar_to_np[gguf.GGUFValueType(kind)]().itemsize
            content = memoryview(self.data)
            for _ in range(count):
                at += 8 + struct.unpack_from("<Q", content, at)[0]
            return at

    return HeaderReader
