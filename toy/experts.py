"""Functions that write models in the quantizer's formats, and read them back."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from ..loaders import Checkpoint
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
    keep: tuple[str, ...] = (),
) -> None:
    """Write a model's parameters, as (official name, tensor), into a safetensors file. Linear weights are quantized
    unless their layer matches a pattern in `keep` or `quant_type` is None."""
    shapes = config.parameter_shapes()
    linear, kind = linear_weights(shapes) if quant_type else (), quant_type or "nf4"
    quantized = [name for name in linear if not any(fnmatchcase(name.removesuffix(".weight"), each) for each in keep)]
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


def write_expert_folder(
    folder: str | Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    quant_type: str | None = "nf4",
    keep: tuple[str, ...] = (),
) -> None:
    """Write a model's folder: JSON files and weights. `tensors` are (official name, tensor). Linear weights are
    quantized unless `quant_type` is None or the layer's name matches a shell pattern in `keep`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_expert(folder / "model.safetensors", config, tensors, quant_type=quant_type, keep=keep)
    write_json(folder / "config.json", config_json(config))
    if quant_type:
        write_json(folder / "quantization_meta.json", {"quant": QUANT})


def expert_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return every parameter of a checkpoint in float32, by official name. Quantized weights are decoded."""
    found = {}
    for name in checkpoint.shapes:
        weight = checkpoint.quantized.get(name)
        if weight is None:
            found[name] = checkpoint.tensors[name].view().float()
        else:
            found[name] = weight.rows(torch.arange(weight.shape[0]))
    return found
