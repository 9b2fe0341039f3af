"""The tensors of a umt5 encoder under Wan's names, checks of their shapes, and the encoder's sizes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..errors import TextError
from ..weights.files import read_tensors
from ..weights.quantized import (
    QuantizedWeight,
    find_quantized,
    owner_of,
    quantization_of,
    quantized_tensors,
    shape_differences,
    shapes_of,
)
from ..weights.tensors import TensorEntry, check_scales

_HF_LAYERS = {
    "layer.0.layer_norm": "norm1",
    "layer.0.SelfAttention.relative_attention_bias": "pos_embedding.embedding",
    "layer.0.SelfAttention.": "attn.",
    "layer.1.layer_norm": "norm2",
    "layer.1.DenseReluDense.wi_0": "ffn.gate.0",
    "layer.1.DenseReluDense.wi_1": "ffn.fc1",
    "layer.1.DenseReluDense.wo": "ffn.fc2",
}
_HF_ROOTS = {"shared.": "token_embedding.", "embed_tokens.": "token_embedding.", "final_layer_norm.": "norm."}
_PREFIXES = re.compile(r"^(?:(?:cond_stage_model|text_encoders?|umt5xxl|transformer|model|module)\.)+")
_ROOTS = ("token_embedding.", "blocks.", "norm.")
EMBEDDING = "token_embedding.weight"
_NON_WEIGHTS = ("spiece_model", "scaled_fp8")
"""Tensors in ComfyUI's files that are not weights: the tokenizer, and a marker of the fp8 format."""
_GGUF_LAYERS = {
    "attn_norm": "norm1",
    "attn_rel_b": "pos_embedding.embedding",
    "attn_": "attn.",
    "ffn_norm": "norm2",
    "ffn_gate": "ffn.gate.0",
    "ffn_up": "ffn.fc1",
    "ffn_down": "ffn.fc2",
}
"""A map from llama.cpp's layer names, without `enc.blk.N.`, to Wan's layer names. Keys may be prefixes of names; the
first key that matches counts."""
_GGUF_ROOTS = {"token_embd.": "token_embedding.", "enc.output_norm.": "norm."}


@dataclass(frozen=True)
class UMT5Config:
    """The sizes of a umt5 encoder. `buckets` is the number of relative position buckets."""

    vocab_size: int
    dim: int
    attention_dim: int
    ffn_dim: int
    num_heads: int
    num_layers: int
    buckets: int

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, tuple[int, ...]]) -> "UMT5Config":
        """Return an encoder's sizes from a mapping of Wan's parameter names to shapes. Raise KeyError or ValueError for
        the parameters of another model."""
        vocab_size, dim = shapes[EMBEDDING]
        buckets, num_heads = shapes["blocks.0.pos_embedding.embedding.weight"]
        numbers = [int(key.split(".")[1]) for key in shapes if key.startswith("blocks.")]
        return cls(
            vocab_size=vocab_size,
            dim=dim,
            attention_dim=shapes["blocks.0.attn.q.weight"][0],
            ffn_dim=shapes["blocks.0.ffn.fc1.weight"][0],
            num_heads=num_heads,
            num_layers=max(numbers) + 1,
            buckets=buckets,
        )

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight of a transformer block, by Wan's parameter name without `blocks.N.`."""
        dim, attention, ffn = self.dim, self.attention_dim, self.ffn_dim
        return {
            "norm1.weight": (dim,),
            "attn.q.weight": (attention, dim),
            "attn.k.weight": (attention, dim),
            "attn.v.weight": (attention, dim),
            "attn.o.weight": (dim, attention),
            "pos_embedding.embedding.weight": (self.buckets, self.num_heads),
            "norm2.weight": (dim,),
            "ffn.gate.0.weight": (ffn, dim),
            "ffn.fc1.weight": (ffn, dim),
            "ffn.fc2.weight": (dim, ffn),
        }

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight of the encoder, by Wan's name."""
        blocks = self.block_shapes()
        return {
            EMBEDDING: (self.vocab_size, self.dim),
            **{f"blocks.{i}.{key}": shape for i in range(self.num_layers) for key, shape in blocks.items()},
            "norm.weight": (self.dim,),
        }


@dataclass(frozen=True)
class UMT5Weights:
    """A umt5 encoder on disk.

    tensors: the tensor entries by Wan's parameter name.
    quantized: the quantized weights by Wan's parameter name; each has several tensors.
    unread: tensors in the file that do not belong to the encoder.
    """

    path: Path
    config: UMT5Config
    tensors: Mapping[str, TensorEntry]
    quantized: Mapping[str, QuantizedWeight] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_of(self.tensors, self.quantized)

    @property
    def quantization(self) -> str | None:
        """The weights' formats, such as "nf4" or "Q4_K+Q6_K"; None for plain weights."""
        return quantization_of(self.quantized)

    @property
    def note(self) -> str | None:
        """A message that lists unread tensors of the file; None if all are read."""
        if not self.unread:
            return None
        some = ", ".join(self.unread[:3]) + (", ..." if len(self.unread) > 3 else "")
        return f"{len(self.unread)} of its tensors are not the encoder's and are not read: {some}"

    def entries(self, name: str) -> list[TensorEntry]:
        """Return the stored tensors of a weight. A quantized weight has several: values, scales and tables."""
        return self.quantized[name].entries if name in self.quantized else [self.tensors[name]]

    def block(self, index: int) -> list[TensorEntry]:
        return [entry for key, entry in self.tensors.items() if key.startswith(f"blocks.{index}.")]

    def parameters(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Convert a block's `tensors` to weights named without `blocks.N.`. Quantized ones become DecodedParameters."""
        quantized = {name: self.quantized[name] for name in tensors if name in self.quantized}
        parameters = {name: tensor for name, tensor in tensors.items() if owner_of(name) is None}
        parameters |= quantized_tensors(quantized, tensors, None, device)
        return {name.split(".", 2)[2]: tensor for name, tensor in parameters.items()}

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embedding of token ids [len], float32 [len, dim]. Only these ids' rows are read."""
        if EMBEDDING in self.quantized:
            return self.quantized[EMBEDDING].rows(ids)
        return self.tensors[EMBEDDING].view()[ids].float()


def open_weights(path: str | Path) -> UMT5Weights:
    """Open a umt5 encoder with tensor names of Wan, Hugging Face or llama.cpp. Only headers and scales are read. Raise
    CheckpointError for damaged files, TextError for another model."""
    named = read_tensors(path, hint="t5")
    name = Path(path).name
    tensors, quantized = find_quantized(name, named, wan_key)
    shapes = shapes_of(tensors, quantized)
    if EMBEDDING not in shapes and not any("pos_embedding" in key for key in shapes):
        raise _other_model(path, named)
    config = _infer(path, shapes)
    _check_shapes(path, shapes, config)
    check_scales(entry for weight in quantized.values() for entry in weight.entries)
    unread = tuple(key for key in named if wan_key(key) is None and key not in _NON_WEIGHTS)
    return UMT5Weights(Path(path), config, tensors, quantized, unread)


def wan_key(name: str) -> str | None:
    """Return Wan's name of an encoder tensor named by Wan, Hugging Face or llama.cpp; None for other tensors."""
    name = _PREFIXES.sub("", name).removeprefix("encoder.")
    for theirs, ours in (_HF_ROOTS | _GGUF_ROOTS).items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    for start, layers in ((r"block\.(\d+)\.", _HF_LAYERS), (r"enc\.blk\.(\d+)\.", _GGUF_LAYERS)):
        if match := re.match(start, name):
            rest = name[match.end() :]
            layer = next((theirs for theirs in layers if rest.startswith(theirs)), None)
            return layer and f"blocks.{match[1]}.{layers[layer]}{rest.removeprefix(layer)}"
    return name if name.startswith(_ROOTS) else None


def huggingface_key(name: str) -> str:
    """Convert a tensor's name in any known scheme, such as Wan's, to Hugging Face's. Unknown names stay unchanged."""
    key = wan_key(name)
    if key is None:
        return name
    if not key.startswith("blocks."):
        return key.replace("token_embedding.", "shared.").replace("norm.", "encoder.final_layer_norm.")
    _, number, rest = key.split(".", 2)
    theirs, ours = next(pair for pair in _HF_LAYERS.items() if rest.startswith(pair[1]))
    return f"encoder.block.{number}.{theirs}{rest.removeprefix(ours)}"


def _other_model(path: str | Path, keys: Iterable[str]) -> TextError:
    kind = "its tensors are named " + (", ".join(list(keys)[:3]) or "nothing at all")
    if any(key.startswith(("patch_embedding.", "model.diffusion_model.")) for key in keys):
        kind = "it looks like a video model (an expert)"
    elif any(key.startswith(("decoder.conv", "encoder.conv", "encoder.downsamples")) for key in keys):
        kind = "it looks like a VAE"
    return TextError(f"{path} is not a umt5 text encoder: {kind}. Expected umt5-xxl, official or Hugging Face names.")


def _infer(path: str | Path, shapes: Mapping[str, tuple[int, ...]]) -> UMT5Config:
    try:
        return UMT5Config.from_shapes(shapes)
    except (KeyError, ValueError, IndexError) as error:
        wanted = sorted({*UMT5Config(0, 0, 0, 0, 0, 1, 0).parameter_shapes()} - {*shapes})
        raise TextError(
            f"{path}: its sizes are unknown ({error}); missing keys: {', '.join(wanted) or 'none'}"
        ) from error


def _check_shapes(path: str | Path, shapes: Mapping[str, tuple[int, ...]], config: UMT5Config) -> None:
    expected = config.parameter_shapes()
    if not (differences := shape_differences(shapes, expected)):
        return
    if any("pos_embedding" in name for name in expected.keys() - shapes.keys()):
        differences += "; every block of umt5 has its own position bias; plain T5 has one for all: use umt5-xxl"
    raise TextError(f"{path} is not a complete umt5 encoder (names as in the official file): {differences}")
