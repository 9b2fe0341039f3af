"""Experts of weights in memory as files, as the quantizer writes them: for the toy, its training and the tests."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from ..model.config import ModelConfig
from ..model.quantized import codec
from ..quantize import comfy
from ..quantize.writer import QUANT, TensorFile, config_json, linear_weights, write_json


def write_expert(
    path: str | Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    quant_type: str | None = "nf4",
    blocksize: int = 64,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Every parameter of `config` by its official name: as "nf4", "fp4", "fp8" or, with None, plain in `dtype`."""
    shapes = config.parameter_shapes()
    quantized, kind = linear_weights(shapes) if quant_type else (), quant_type or "nf4"
    with TensorFile(Path(path), shapes, quantized, quant_type=kind, blocksize=blocksize, dtype=dtype) as file:
        for name, tensor in tensors:
            tensor = tensor.to(dtype)
            if name not in quantized:
                file.write(name, tensor)
            elif kind in comfy.FORMATS:
                file.write(name, comfy.encode(tensor, kind)[:2])
            else:
                file.write(name, codec.encode(tensor, blocksize, quant_type=kind))
        file.finish()


def write_expert_folder(folder: str | Path, config: ModelConfig, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """An NF4 expert as the community package has it: model.safetensors, config.json and quantization_meta.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_expert(folder / "model.safetensors", config, tensors)
    write_json(folder / "config.json", config_json(config))
    write_json(folder / "quantization_meta.json", {"quant": QUANT})
