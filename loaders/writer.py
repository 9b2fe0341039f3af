"""Experts written in the community package's format, one tensor in memory at a time."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..model.config import ModelConfig
from .checkpoint import CAUSAL_CLASS
from .codec import NESTED_BLOCKSIZE, Scales, components, encode
from .tensors import DTYPES

_CODES = {dtype: code for code, dtype in DTYPES.items()}
# More bytes than any quant_state has: it is JSON of two sizes, two block sizes and an offset.
_STATE_LIMIT = 240
_DTYPE_ORDER = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)

Source = Tensor | tuple[Tensor, Scales]
Shapes = dict[str, tuple[int, ...]]
Layout = dict[str, tuple[torch.dtype, list[int], int]]
"""Of each tensor of the file, by key: dtype, shape and byte offset."""


def write_nf4_expert(path: str | Path, config: ModelConfig, tensors: Iterable[tuple[str, Source]]) -> None:
    """Write an expert as bitsandbytes NF4 with blocks of 64 and double quantization; the rest as bf16.

    `tensors` yields every parameter of `config` by its official name, in any order: float tensors, or for a
    linear weight what `codec.encode` returned. The file appears under its name when it is complete.
    Raises CheckpointError when the names or shapes are not those of `config`.
    """
    write_expert(path, config, tensors, quant_type="nf4")


def write_expert(
    path: str | Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, Source]],
    *,
    quant_type: str | None = "nf4",
    blocksize: int = 64,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Like `write_nf4_expert`, for "nf4", "fp4" or, with None, plain weights in `dtype`."""
    path, wanted = Path(path), config.parameter_shapes()
    layout = _layout(wanted, quant_type, blocksize, dtype)
    header_bytes = len(_header(layout))
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            _write_tensors(file, header_bytes, layout, _stored(wanted, tensors, quant_type, blocksize, dtype))
            header = _header(layout)
            file.seek(0)
            file.write(header_bytes.to_bytes(8, "little") + header.ljust(header_bytes))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _stored(
    wanted: Shapes, tensors: Iterable[tuple[str, Source]], quant_type: str | None, blocksize: int, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors by key: every parameter once, 4-bit weights with their components."""
    left = dict(wanted)
    for name, source in tensors:
        shape = left.pop(name, None)
        if shape is None or (isinstance(source, Tensor) and tuple(source.shape) != shape):
            raise CheckpointError(f"{name}: not a parameter of this model, given twice, or not {shape}")
        if quant_type is None or len(shape) != 2:
            yield name, cast(Tensor, source).to(dtype)
            continue
        if isinstance(source, Tensor):
            source = encode(source.to(dtype), blocksize, quant_type=quant_type)
        packed, scales = source
        yield name, packed
        for suffix, component in components(scales, shape, quant_type, dtype).items():
            yield name + suffix, component
    if left:
        raise CheckpointError(f"{len(left)} parameters were not given: {', '.join(list(left)[:5])}")


def _layout(wanted: Shapes, quant_type: str | None, blocksize: int, dtype: torch.dtype) -> Layout:
    """Key to dtype, shape and byte offset. Ordered by dtype, the widest first, as safetensors does, so that every
    tensor is aligned. The quant_states come last: their lengths depend on the data; `_write_tensors` corrects them."""
    found = [item for name, shape in wanted.items() for item in _tensors_of(name, shape, quant_type, blocksize, dtype)]
    found.sort(key=lambda item: (_is_state(item[0]), _DTYPE_ORDER.index(item[1]), item[0]))
    layout, end = {}, 0
    for key, stored, shape in found:
        layout[key] = stored, shape, end
        end += torch.Size(shape).numel() * stored.itemsize
    return layout


def _tensors_of(
    name: str, shape: tuple[int, ...], quant_type: str | None, blocksize: int, dtype: torch.dtype
) -> Iterator[tuple[str, torch.dtype, list[int]]]:
    """Key, dtype and shape of what a parameter is stored as."""
    if quant_type is None or len(shape) != 2:
        yield name, dtype, list(shape)
        return
    values = shape[0] * shape[1]
    blocks = -(-values // blocksize)
    yield name, torch.uint8, [-(-values // 2), 1]
    yield f"{name}.absmax", torch.uint8, [blocks]
    yield f"{name}.quant_map", torch.float32, [16]
    yield f"{name}.nested_absmax", torch.float32, [-(-blocks // NESTED_BLOCKSIZE)]
    yield f"{name}.nested_quant_map", torch.float32, [256]
    yield f"{name}.quant_state.bitsandbytes__{quant_type}", torch.uint8, [_STATE_LIMIT]


def _write_tensors(file: BinaryIO, header_bytes: int, layout: Layout, stored: Iterable[tuple[str, Tensor]]) -> None:
    states = {}
    for key, tensor in stored:
        if _is_state(key):
            states[key] = tensor
            continue
        file.seek(8 + header_bytes + layout[key][2])
        file.write(_bytes(tensor))
    end = min((layout[key][2] for key in states), default=0)
    for key in sorted(states):
        layout[key] = torch.uint8, [states[key].numel()], end
        file.seek(8 + header_bytes + end)
        file.write(_bytes(states[key]))
        end += states[key].numel()


def _header(layout: Layout) -> bytes:
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    for key, (dtype, shape, begin) in layout.items():
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        header[key] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return text.ljust(-(-len(text) // 8) * 8)


def _is_state(key: str) -> bool:
    return ".quant_state." in key


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def write_expert_folder(folder: str | Path, config: ModelConfig, tensors: Iterable[tuple[str, Source]]) -> None:
    """An NF4 expert as the community package has it: model.safetensors, config.json and quantization_meta.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_nf4_expert(folder / "model.safetensors", config, tensors)
    _write_json(folder / "config.json", {
        "_class_name": CAUSAL_CLASS if config.causal else "WanModel", "model_type": "i2v",
        "text_len": config.text_len, "in_dim": config.in_dim,
        "dim": config.dim, "ffn_dim": config.ffn_dim, "freq_dim": config.freq_dim, "out_dim": config.out_dim,
        "num_heads": config.num_heads, "num_layers": config.num_layers, "eps": config.eps,
    })  # fmt: skip
    _write_json(folder / "quantization_meta.json", {
        "quant": {"format": "bnb_nf4", "double_quant": True, "compute_dtype": "bfloat16", "quant_type": "nf4"},
    })  # fmt: skip


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
