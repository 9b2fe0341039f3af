"""The files of one model, opened and checked before their weights are read."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from ..errors import CheckpointError
from ..model.config import ModelConfig
from ..options import LoraFile, Release
from ..weights.config_json import check_config, stated_numbers, wan_fields
from ..weights.files import drop_other_parts, read_json, read_tensors, shared_prefix
from ..weights.gguf_file import BlockWeight
from ..weights.quantized import QuantizedWeight, find_quantized, quantization_of, shape_differences, shapes_of
from ..weights.tensors import MappedFile, TensorEntry
from . import diffusers_names
from .lora import LoraChanges, lora_bytes, read_loras
from .release import detect_release, find_release, merge_warning, names_of, noise_role, release_note

_PREFIXES = ("model.diffusion_model.", "diffusion_model.")
_PATCH = "patch_embedding.weight"

_KEYS_OF_OTHER_KINDS = (
    ("a LoRA", ("lora_A", "lora_B", "lora_down", "lora_up", "lora.up", "lora.down", "diff_b")),
    ("an image encoder (CLIP)", ("vision_model.", "visual.", "log_scale")),
    ("a T5 text encoder", ("token_embedding.", "shared.weight", "encoder.block.", "relative_attention_bias")),
    ("a VAE", ("encoder.conv1.", "decoder.conv1.", "encoder.downsamples.", "encoder.down_blocks.", "quant_conv.")),
    ("a Matrix-Game model", (".action_model.", "keyboard_", "mouse_")),
    (
        "a Wan 2.1 image-to-video model with image cross-attention",
        ("img_emb.", ".k_img.", ".v_img.", "image_embedder.", ".add_k_proj."),
    ),
    ("a nunchaku (SVDQuant) quantization", (".wscales", ".smooth_factor")),
    ("a GPTQ or AWQ quantization", (".qweight", ".qzeros")),
    ("an 8-bit bitsandbytes quantization", (".SCB",)),
)
_EXPECTED = (
    "expected a LingBot-World expert: bitsandbytes NF4 or FP4, ComfyUI's fp8, int8, nvfp4 or mxfp8, GGUF, bf16, fp16 "
    "or fp32, in the official key names or diffusers'"
)


@dataclass(frozen=True)
class Checkpoint:
    """One of the base model's two experts, or a causal model, on disk.

    tensors: all tensors by official name, including scales and tables.
    shapes: the shape of every parameter after decoding.
    source: the folder from which the weights were quantized, or "".
    release: a causal model's release; None for an expert.
    chosen: whether the user chose the release; otherwise it was detected.
    """

    path: Path
    config: ModelConfig
    tensors: Mapping[str, TensorEntry] = field(repr=False)
    quantized: Mapping[str, QuantizedWeight] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    source: str = ""
    changes: LoraChanges = field(default_factory=dict, repr=False)
    release: Release | None = None
    chosen: bool = False

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def names(self) -> tuple[str, ...]:
        """The names, such as folder names, that may state the model's release or role, most reliable first."""
        return names_of(self.path, self.source)

    @property
    def release_lines(self) -> tuple[str, ...]:
        """Lines for the user about a causal model: release, licence and file name, then warnings, such as of an unclear
        or contradictory name. Empty for an expert."""
        if self.release is None:
            return ()
        lines = [f"{self.release.name} ({self.release.licence}): {self.name}", *self.merge_warnings]
        if not self.chosen and (note := release_note(self.names, self.config)) is not None:
            lines.append(note)
        if self.chosen and (expert := next(filter(noise_role, self.names), None)) is not None:
            lines.append(f"{expert} is the name of a base model's expert; `release` makes it run as a causal model.")
        shift, stated = self.release.shift, diffusers_names.stated_shift(self.path)
        if stated not in (None, shift):
            lines.append(
                f"The scheduler's config next to it has shift {stated:g}; taken is {self.release.name}'s {shift:g}, "
                "unless `shift` names another."
            )
        return tuple(lines)

    @property
    def merge_warnings(self) -> tuple[str, ...]:
        """A warning for each file that may be a merge of two models: its header names a causal model and an expert."""
        sources = {entry.source for entry in self.tensors.values() if isinstance(entry.source, MappedFile)}
        notes = {source.path: merge_warning(source.metadata) for source in sources}
        return tuple(f"{path}: {note}" for path, note in sorted(notes.items()) if note is not None)

    def rounded(self, dtype: torch.dtype) -> "Checkpoint":
        """Return a copy whose unquantized floats wider than `dtype` are rounded when they are read."""
        tensors = {name: entry.rounded(dtype) if name in self.plain else entry for name, entry in self.tensors.items()}
        return dataclasses.replace(self, tensors=tensors)

    def with_release(self, release: str) -> "Checkpoint":
        """Return a copy that runs as a causal model of `release`. Raise InputError if `release` is not a key of
        RELEASES."""
        config = dataclasses.replace(self.config, causal=True)
        return dataclasses.replace(self, config=config, release=find_release(release), chosen=True)

    @property
    def kind(self) -> str:
        """The kind of model for messages, such as "LingBot-World expert"."""
        if self.config.causal:
            return "LingBot-World causal model"
        return "LingBot-World expert" if self.config.control else "plain Wan expert"

    @property
    def files(self) -> list[Path]:
        return list(dict.fromkeys(entry.path for entry in self.tensors.values()))

    @property
    def quantization(self) -> str | None:
        """The weights' formats, such as "nf4" or "Q4_K+Q6_K"; None for plain weights."""
        return quantization_of(self.quantized)

    @cached_property
    def plain(self) -> dict[str, TensorEntry]:
        """The parameters that are not quantized, by official name."""
        return {name: self.tensors[name] for name in self.shapes if name not in self.quantized}

    @property
    def nbytes(self) -> int:
        """The bytes that all tensors and LoRAs take in device memory."""
        return sum(entry.nbytes for entry in self.tensors.values()) + lora_bytes(self.changes)

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def entries(self, names: Iterable[str]) -> list[TensorEntry]:
        """Return the stored tensors of these parameters. A quantized one has several: values, scales and tables."""
        weights = ((name, self.quantized.get(name)) for name in names)
        return [entry for name, weight in weights for entry in (weight.entries if weight else [self.tensors[name]])]


def open_checkpoint(path: str | Path, loras: Sequence[LoraFile] = ()) -> Checkpoint:
    """Return the Checkpoint of a folder or file, reading only headers and a few quantized values. LoRAs of strength 0
    are left out. Raise CheckpointError for damaged or unsuitable files."""
    path = Path(path).expanduser().absolute()
    tensors, quantized = _read(path)
    shapes = shapes_of(tensors, quantized)
    folder = next(iter(tensors.values())).path.parent
    stated = diffusers_names.official_config(wan_fields(read_json(folder / "config.json", optional=True)))
    config = _config(path.name, shapes, stated)
    if found := shape_differences(shapes, config.parameter_shapes()):
        raise CheckpointError(
            f"{path.name}: not the tensors of an expert; {found}. Download the file again, or check that it is the "
            "right one"
        )
    check_config(path.name, config, stated)
    meta = read_json(folder / "quantization_meta.json", optional=True)
    source = str(meta.get("source", ""))
    release = detect_release(names_of(path, source), str(stated.get("_class_name") or ""), config)
    config = dataclasses.replace(config, causal=release is not None)
    changes = read_loras([lora for lora in loras if lora.strength], shapes)
    checkpoint = Checkpoint(path, config, tensors, quantized, shapes, source, changes, release)
    _check_meta(checkpoint, meta)
    return checkpoint


def _read(path: Path) -> tuple[dict[str, TensorEntry], dict[str, QuantizedWeight]]:
    entries = drop_other_parts(read_tensors(path), _PREFIXES)
    official = _official_name(entries)
    _check_kind(path.name, {official(key): entry for key, entry in entries.items()})
    tensors, quantized = find_quantized(path.name, entries, official)
    for name in [name for name in tensors if name.endswith("modulation")]:  # some writers of GGUF leave the size 1 out
        entry, weight = tensors[name], quantized.get(name)
        if isinstance(weight, BlockWeight) and len(weight.shape) == 2:
            quantized[name] = dataclasses.replace(weight, shape=(1, *weight.shape))
        elif len(entry.shape) == 2:
            tensors[name] = dataclasses.replace(entry, shape=(1, *entry.shape))
    return tensors, quantized


def _official_name(keys: Collection[str]) -> Callable[[str], str]:
    """Detect the naming scheme of a file's tensor names `keys`. Return a converter to official names."""
    known = next((prefix for prefix in _PREFIXES if any(key.startswith(prefix) for key in keys)), "")
    prefix = known or shared_prefix(keys, (_PATCH,))
    if any(mark in key for key in keys for mark in diffusers_names.MARKS):
        return lambda key: diffusers_names.official_name(key.removeprefix(prefix))
    return lambda key: key.removeprefix(prefix)


def _config(name: str, shapes: Mapping[str, tuple], stated: dict) -> ModelConfig:
    known = stated_numbers(name, stated)
    sizes = {key: known[key] for key in ("num_heads", "text_len") if key in known}
    try:
        config = ModelConfig.from_shapes(shapes, **sizes)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error
    return dataclasses.replace(config, eps=float(known.get("eps", config.eps)))


def _check_meta(checkpoint: Checkpoint, meta: dict) -> None:
    quant = meta.get("quant")
    stated = quant.get("quant_type") if isinstance(quant, dict) else None
    if stated is not None and stated != checkpoint.quantization:
        found = checkpoint.quantization or "not quantized"
        raise CheckpointError(
            f"{checkpoint.name}: quantization_meta.json has {stated}, the tensors are {found}; "
            "the files do not belong together"
        )


def _check_kind(name: str, entries: Mapping[str, TensorEntry]) -> None:
    all_keys = "\n".join(entries)
    for kind, marks in _KEYS_OF_OTHER_KINDS:
        mark = next((mark for mark in marks if mark in all_keys), None)
        if mark is not None:
            sample = next(key for key in entries if mark in key)
            raise CheckpointError(f"{name}: this is {kind} (it has {sample}); {_EXPECTED}")
    if not any(key.startswith("blocks.") for key in entries):
        sample = ", ".join(list(entries)[:3])
        raise CheckpointError(f"{name}: no transformer block in it (it has {sample}); {_EXPECTED}")
    _check_channels(name, entries)


def _check_channels(name: str, entries: Mapping[str, TensorEntry]) -> None:
    patch = entries.get(_PATCH)
    if patch is None or len(patch.shape) != 5:
        return
    channels = patch.shape[1]
    if channels == 48:
        camera = any("wancamctrl" in key or "cam_" in key for key in entries)
        kind = "Matrix-Game 3.0" if camera else "Wan 2.2 TI2V 5B"
        raise CheckpointError(f"{name}: {kind} by its shapes (patch_embedding takes 48 channels); {_EXPECTED}")
    if channels != 36:
        kind = "a text-to-video model" if channels == 16 else "another model"
        raise CheckpointError(
            f"{name}: {kind}: patch_embedding takes {channels} channels, expected 36 "
            "(16 noise, 4 mask, 16 image latent)"
        )
