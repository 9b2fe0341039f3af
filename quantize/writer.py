"""A writer of quantized safetensors files, parameter by parameter, so that no file is in memory as a whole."""

import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ..loaders.release import CAUSAL_CLASS, GUIDED_CLASS
from ..model.config import ModelConfig
from ..model.quantized.codec import NESTED_BLOCKSIZE, Scales, components
from ..options import Release
from ..outputs import written_whole
from ..weights.tensors import DTYPES
from . import comfy

_CODES = {dtype: code for code, dtype in DTYPES.items()}
# The upper limit of a quant_state in bytes: JSON of two sizes, two block sizes and an offset.
_STATE_LIMIT = 240
_DTYPE_ORDER = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.uint8)

_READ_BYTES = 1 << 20
QUANT = {"format": "bnb_nf4", "double_quant": True, "compute_dtype": "bfloat16", "quant_type": "nf4"}
"""The default of the field `quant` in quantization_meta.json."""

Values = Tensor | tuple[Tensor, Scales | dict[str, Tensor]]
"""A parameter to write: a float tensor, or a pair of encoded values and scales."""
Shapes = Mapping[str, tuple[int, ...]]
Layout = dict[str, tuple[torch.dtype, list[int], int]]
"""The dtype, shape and byte offset of each tensor in the file, by key."""


class TensorFile(AbstractContextManager["TensorFile"]):
    """A safetensors file of known shapes. Any thread may write its parameters, in any order.

    quantized: the names of the parameters that are stored as `quant_type`.
    quant_type: "nf4", "fp4", or a key of `comfy.FORMATS`.
    dtype: the dtype of all other parameters.
    resume: whether to keep an existing file's parameters.
    """

    def __init__(
        self,
        path: Path,
        shapes: Shapes,
        quantized: Collection[str],
        *,
        quant_type: str = "nf4",
        blocksize: int = 64,
        dtype: torch.dtype = torch.bfloat16,
        resume: bool = False,
    ) -> None:
        self._shapes, self._quantized, self._dtype = shapes, frozenset(quantized), dtype
        self._quant_type, self._blocksize, self._lock = quant_type, blocksize, threading.Lock()
        self.states: dict[str, bytes] = {}
        """bitsandbytes' quant_states (JSON texts) by key. `finish` writes them, when their lengths are known."""
        self._layout = _layout(_tensors(shapes, self._quantized, quant_type, blocksize, dtype))
        self._metadata = comfy.metadata(self._quantized, quant_type)
        self._header_bytes = len(_header(self._layout, self._metadata))
        self._file = path.open("r+b" if resume and path.exists() else "w+b")

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, name: str, values: Values) -> dict[str, str]:
        """Write a parameter and return the SHA-256 of each of its tensors by key."""
        tensors = self._tensors_of(name, values)
        digests = {}
        for key, tensor in tensors.items():
            data = bytes_of(tensor)
            digests[key] = hashlib.sha256(data).hexdigest()
            if _is_state(key):
                self.states[key] = bytes(data)
                continue
            with self._lock:
                self._file.seek(self._start(key))
                self._file.write(data)
                self._file.flush()
        return digests

    def digest(self, key: str) -> str:
        """Return the SHA-256 of the tensor `key`, read back from the file."""
        if _is_state(key):
            return hashlib.sha256(self.states.get(key, b"")).hexdigest()
        dtype, shape, _ = self._layout[key]
        left, position, digest = torch.Size(shape).numel() * dtype.itemsize, self._start(key), hashlib.sha256()
        while left:
            with self._lock:
                self._file.seek(position)
                data = self._file.read(min(left, _READ_BYTES))
            if not data:
                break
            digest.update(data)
            left, position = left - len(data), position + len(data)
        return digest.hexdigest()

    def finish(self) -> None:
        """Write the quant_states and the header to the disk. Until then readers refuse the file."""
        layout, states = dict(self._layout), sorted(self.states)
        end = min((layout[key][2] for key in states), default=0)
        for key in states:
            layout[key] = torch.uint8, [len(self.states[key])], end
            self._file.seek(8 + self._header_bytes + end)
            self._file.write(self.states[key])
            end += len(self.states[key])
        self._file.seek(0)
        self._file.write(
            self._header_bytes.to_bytes(8, "little") + _header(layout, self._metadata).ljust(self._header_bytes)
        )
        if states:
            self._file.truncate(8 + self._header_bytes + end)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _start(self, key: str) -> int:
        return 8 + self._header_bytes + self._layout[key][2]

    def _tensors_of(self, name: str, values: Values) -> dict[str, Tensor]:
        if name not in self._quantized:
            return {name: cast(Tensor, values).to(self._dtype)}
        packed, scales = cast(tuple[Tensor, Scales | dict[str, Tensor]], values)
        if not isinstance(scales, dict):
            scales = components(scales, self._shapes[name], self._quant_type, self._dtype)
        return {name: packed} | {name + suffix: part for suffix, part in scales.items()}


def file_bytes(shapes: Shapes, quantized: Collection[str], blocksize: int = 64, quant_type: str = "nf4") -> int:
    """Predict a file's size in bytes, possibly a few KB too large. Parameters not in `quantized` are in bf16."""
    layout = _layout(_tensors(shapes, quantized, quant_type, blocksize, torch.bfloat16))
    header = _header(layout, comfy.metadata(quantized, quant_type))
    return len(header) + sum(torch.Size(shape).numel() * dtype.itemsize for dtype, shape, _ in layout.values())


def linear_weights(shapes: Shapes) -> list[str]:
    """Return the names of all two-dimensional parameters: weights of linear layers, and embedding tables if any."""
    return [name for name, shape in shapes.items() if len(shape) == 2]


def _tensors(
    shapes: Shapes, quantized: Collection[str], quant_type: str, blocksize: int, dtype: torch.dtype
) -> Iterator[tuple[str, torch.dtype, list[int]]]:
    for name, shape in shapes.items():
        if name not in quantized:
            yield name, dtype, list(shape)
            continue
        if quant_type in comfy.FORMATS:
            yield from comfy.stored_tensors(name, shape, quant_type)
            continue
        values = torch.Size(shape).numel()
        blocks = -(-values // blocksize)
        yield name, torch.uint8, [-(-values // 2), 1]
        yield f"{name}.absmax", torch.uint8, [blocks]
        yield f"{name}.quant_map", torch.float32, [16]
        yield f"{name}.nested_absmax", torch.float32, [-(-blocks // NESTED_BLOCKSIZE)]
        yield f"{name}.nested_quant_map", torch.float32, [256]
        yield f"{name}.quant_state.bitsandbytes__{quant_type}", torch.uint8, [_STATE_LIMIT]


def _layout(tensors: Iterable[tuple[str, torch.dtype, list[int]]]) -> Layout:
    """Return each tensor's dtype, shape and offset: wide dtypes first for alignment, quant_states last."""
    ordered = sorted(tensors, key=lambda item: (_is_state(item[0]), _DTYPE_ORDER.index(item[1]), item[0]))
    layout, end = {}, 0
    for key, stored, shape in ordered:
        layout[key] = stored, shape, end
        end += torch.Size(shape).numel() * stored.itemsize
    return layout


def _header(layout: Layout, metadata: Mapping[str, str]) -> bytes:
    header: dict[str, dict] = {"__metadata__": {"format": "pt", **metadata}}
    for key, (dtype, shape, begin) in layout.items():
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        header[key] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return text.ljust(-(-len(text) // 8) * 8)


def _is_state(key: str) -> bool:
    return ".quant_state." in key


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in row-major order, as in a safetensors file."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def config_json(config: ModelConfig, release: Release | None = None) -> dict:
    """Return the content of an official release's config.json. A causal model's `release` decides `_class_name`."""
    causal = GUIDED_CLASS if release and release.guided else CAUSAL_CLASS
    sizes = "text_len", "in_dim", "dim", "ffn_dim", "freq_dim", "out_dim", "num_heads", "num_layers", "eps"
    kind = {"_class_name": causal if config.causal else "WanModel", "model_type": "i2v"}
    return kind | {name: getattr(config, name) for name in sizes}


def write_json(path: Path, content: dict | list) -> None:
    """Write a small JSON file atomically."""
    with written_whole(path) as (part,):
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
