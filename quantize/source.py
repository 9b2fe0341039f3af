"""What is to be quantized: the plain tensors of a model or text encoder, and which of them become 4-bit weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import CheckpointError, InputError
from ..loaders import open_checkpoint
from ..loaders.files import read_json
from ..loaders.lora import Change, read_loras
from ..loaders.tensors import TensorEntry, in_file_order
from ..options import LoraFile
from ..text.weights import open_weights
from .writer import config_json, linear_weights

CONFIG = "config.json"
_PART_FOLDERS = ("transformer", "transformer_2", "transformers", "text_encoder")
"""Names that say nothing of the package that a model lies in: diffusers' and 2.0's."""


@dataclass(frozen=True)
class Source:
    """`tensors` are all parameters by official name, in the order in which they lie in their files. `config` is the
    content of the config.json that belongs beside them; a text encoder has none. `changes` is what LoRAs add."""

    path: Path
    tensors: Mapping[str, TensorEntry] = field(repr=False)
    quantized: frozenset[str] = field(repr=False)
    config: dict | None = field(repr=False)
    changes: Mapping[str, list[Change]] = field(default_factory=dict, repr=False)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.tensors.items()}

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.tensors.values())

    @property
    def files(self) -> list[Path]:
        return sorted({entry.path for entry in self.tensors.values()})

    @property
    def folder_name(self) -> str:
        """The name of the folder that it was downloaded to, which a model may lie in under a name of its own."""
        folder = (self.path if self.path.is_dir() else self.path.parent).absolute()
        return folder.parent.name if folder.name in _PART_FOLDERS else folder.name


def open_model(path: Path, keep: Sequence[str], loras: Sequence[LoraFile]) -> Source:
    """An expert or causal model. `keep` names linear layers (`head.head`, `blocks.0.*`) that are to stay as they are.

    Raises CheckpointError for weights that are quantized already or no such model's and for a LoRA that does not fit,
    InputError for a name in `keep` that fits no layer, or if nothing is left to quantize.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.quantized:
        raise CheckpointError(
            f"{path}: the weights are {checkpoint.quantization} already; give the bf16, fp16 or fp32 "
            "weights that they were made from"
        )
    tensors = {entry.name: entry for entry in in_file_order(checkpoint.plain.values())}
    config = read_json(checkpoint.files[0].parent / CONFIG, optional=True)
    if "dim" not in config:
        config = config_json(checkpoint.config, checkpoint.release is not None and checkpoint.release.guided)
    return Source(path, tensors, _picked(checkpoint.shapes, keep), config, read_loras(loras, checkpoint.shapes))


def open_text_encoder(path: Path) -> Source:
    """A umt5 text encoder. Its position biases stay as they are. Raises as `open_model` does, or TextError."""
    weights = open_weights(path)
    if weights.four_bit:
        raise CheckpointError(f"{path}: the weights are 4-bit already; give the official bf16 file")
    unusual = [name for name in weights.tensors if name.endswith(("scale_weight", "weight_scale"))]
    if unusual:
        raise CheckpointError(f"{path}: the weights are scaled fp8 already; give the official bf16 file")
    matrices = linear_weights({name: entry.shape for name, entry in weights.tensors.items()})
    quantized = frozenset(name for name in matrices if "pos_embedding" not in name)
    tensors = {entry.name: entry for entry in in_file_order(weights.tensors.values())}
    return Source(path, tensors, quantized, None)


def _picked(shapes: Mapping[str, tuple[int, ...]], keep: Sequence[str]) -> frozenset[str]:
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
