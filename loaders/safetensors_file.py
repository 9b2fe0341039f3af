"""The header of a safetensors file, checked before a byte of data is read.

Our own reader, because streaming to a GPU needs the byte ranges, which the safetensors library keeps to itself.
Format: 8 bytes little-endian length, that much JSON, then the tensors without gap or overlap.
"""

import json
import math
import os
from pathlib import Path

import torch

from ..errors import CheckpointError
from .entries import MappedFile, TensorEntry

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_HEADER_LIMIT = 100_000_000
_SIZE_LIMIT = 1 << 48


def read_safetensors(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a file by name. Raises CheckpointError when the header and the file do not agree."""
    header, data_start = _read_header(path)
    data_bytes = path.stat().st_size - data_start
    source, entries = MappedFile(path), {}
    end = 0
    for name, begin, stop, dtype, shape in sorted(_ranges(path, header), key=lambda found: found[1:3]):
        if begin != end:
            relation = "overlaps" if begin < end else "leaves a gap after"
            raise CheckpointError(f"{path.name}: {name} at byte {begin} {relation} the tensor that ends at byte {end}; "
                                  "the file is corrupt, get it again")  # fmt: skip
        entries[name] = TensorEntry(name, path, dtype, shape, source, data_start + begin)
        end = stop
    if end > data_bytes:
        raise CheckpointError(f"{path.name}: the file is truncated: {data_start + data_bytes:,} bytes, its header "
                              f"describes {data_start + end:,}; get it again")  # fmt: skip
    if end < data_bytes:
        raise CheckpointError(f"{path.name}: {data_bytes - end:,} bytes after the last tensor; the file is corrupt")
    return entries


def _read_header(path: Path) -> tuple[dict, int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            raise CheckpointError(f"{path.name}: {size:,} bytes, but a safetensors header of {length:,} bytes is "
                                  "announced; the file is truncated or of another kind")  # fmt: skip
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: the safetensors header is not JSON ({error}); get it again") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name}: the safetensors header is a {type(header).__name__}, expected an object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _ranges(path: Path, header: dict):
    for name, item in header.items():
        try:
            dtype, shape, (begin, stop) = item["dtype"], tuple(item["shape"]), item["data_offsets"]
            whole = all(type(number) is int and 0 <= number < _SIZE_LIMIT for number in (*shape, begin, stop))
        except (TypeError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path.name}: the header entry of {name} is broken: {item!r:.200}") from error
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise CheckpointError(f"{path.name}: {name} has the unknown dtype {dtype!r}")
        if not whole or stop - begin != math.prod(shape) * DTYPES[dtype].itemsize:
            raise CheckpointError(f"{path.name}: {name} is {dtype} {list(shape)}, which does not fill its byte range "
                                  f"[{begin}, {stop}]; the header is corrupt")  # fmt: skip
        yield name, begin, stop, DTYPES[dtype], shape


def looks_like_safetensors(path: Path) -> bool:
    """Whether the file starts as a safetensors file does, or is named like one."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:9] == b"{" or os.fspath(path).endswith(".safetensors")
