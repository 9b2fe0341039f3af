"""The input of a quantization: the tensors of a model or text encoder, and which to quantize."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import CheckpointError, InputError
from ..loaders import open_checkpoint
from ..loaders.lora import LoraChange, read_loras
from ..options import LoraFile
from ..text.weights import open_weights
from ..weights.files import read_json
from ..weights.quantized import FourBitWeight, QuantizedWeight, quantization_of
from ..weights.tensors import TensorEntry, in_file_order
from .writer import config_json, linear_weights

CONFIG = "config.json"
_PART_FOLDERS = ("transformer", "transformer_2", "transformers", "text_encoder")
"""Folder names that are too generic to identify a model."""


@dataclass(frozen=True)
class Source:
    """The parameters of a model or text encoder, and which to quantize.

    parameters: the stored tensors of each parameter, by official name, in file order.
    quantized: the names of the parameters to quantize.
    config: the content of config.json; None for a text encoder.
    packed: parameters that are quantized in the file, and decoded before quantization.
    """

    path: Path
    parameters: Mapping[str, list[TensorEntry]] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    quantized: frozenset[str] = field(repr=False)
    config: dict | None = field(repr=False)
    packed: Mapping[str, QuantizedWeight] = field(default_factory=dict, repr=False)
    changes: Mapping[str, list[LoraChange]] = field(default_factory=dict, repr=False)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entries in self.parameters.values() for entry in entries)

    @property
    def files(self) -> list[Path]:
        return sorted({entry.path for entries in self.parameters.values() for entry in entries})

    @property
    def folder_name(self) -> str:
        """The name of the model's folder, or of its parent folder if the name is generic, such as `transformer`."""
        folder = (self.path if self.path.is_dir() else self.path.parent).absolute()
        return folder.parent.name if folder.name in _PART_FOLDERS else folder.name


def open_model(path: Path, keep: Sequence[str], loras: Sequence[LoraFile], multiple: int = 1) -> Source:
    """Open a model to quantize. Layers in `keep`, and matrices with a size that `multiple` does not divide, stay
    unquantized. Raise CheckpointError for an unsuitable model or LoRA, InputError for an unknown layer."""
    checkpoint = open_checkpoint(path)
    _refuse_four_bits(path, checkpoint.quantized)
    config = read_json(checkpoint.files[0].parent / CONFIG, optional=True)
    if "dim" not in config:
        config = config_json(checkpoint.config, checkpoint.release)
    parameters = _in_file_order({name: checkpoint.entries([name]) for name in checkpoint.shapes})
    changes, shapes = read_loras(loras, checkpoint.shapes), checkpoint.shapes
    fitting = {name: shape for name, shape in shapes.items() if not any(size % multiple for size in shape)}
    return Source(path, parameters, shapes, _choose_weights(fitting, keep), config, checkpoint.quantized, changes)


def open_text_encoder(path: Path) -> Source:
    """Open a umt5 text encoder to quantize. Raise CheckpointError for 4-bit weights, TextError for another model."""
    weights = open_weights(path)
    _refuse_four_bits(path, weights.quantized)
    shapes = weights.shapes
    quantized = frozenset(name for name in linear_weights(shapes) if "pos_embedding" not in name)
    parameters = _in_file_order({name: weights.entries(name) for name in shapes})
    return Source(path, parameters, shapes, quantized, None, weights.quantized)


def _refuse_four_bits(path: Path, quantized: Mapping[str, QuantizedWeight]) -> None:
    if any(isinstance(weight, FourBitWeight) for weight in quantized.values()):
        raise CheckpointError(
            f"{path}: the weights are {quantization_of(quantized)} already; give the bf16, fp16 or fp32 "
            "weights that they were made from"
        )


def _in_file_order(parameters: Mapping[str, list[TensorEntry]]) -> dict[str, list[TensorEntry]]:
    first = {entries[0].name: name for name, entries in parameters.items()}
    ordered = in_file_order(entries[0] for entries in parameters.values())
    return {first[entry.name]: parameters[first[entry.name]] for entry in ordered}


def _choose_weights(shapes: Mapping[str, tuple[int, ...]], keep: Sequence[str]) -> frozenset[str]:
    layers = {name: name.removesuffix(".weight") for name in linear_weights(shapes)}
    for pattern in keep:
        if not any(fnmatchcase(layer, pattern) for layer in layers.values()):
            some = ", ".join(sorted(set(layers.values()) - {"head.head"})[:3])
            raise InputError(
                f"`keep`: {pattern} is no linear layer of this model; they are called head.head, {some}, "
                "..., and a * stands for anything"
            )
    picked = frozenset(name for name, layer in layers.items() if not any(fnmatchcase(layer, p) for p in keep))
    if not picked:
        raise InputError(f"`keep`: {' '.join(keep)} keeps every linear layer; nothing is left to quantize")
    return picked
