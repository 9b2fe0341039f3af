"""A checkpoint of one expert: opened by its header, checked whole, described; no weight is read."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import CheckpointError
from ..model.config import ModelConfig
from .entries import TensorEntry
from .files import read_json, weight_files
from .four_bit import FourBitWeight, component_owner, find_four_bit
from .kinds import refuse_magic, refuse_other_kinds
from .safetensors_file import looks_like_safetensors, read_safetensors
from .torch_file import ZIP_MAGIC, read_torch_file

PREFIXES = ("model.diffusion_model.", "diffusion_model.")
_TOLD_BY_CONFIG = ("num_heads", "text_len", "eps")
_CAMERAS = {None: "none (plain Wan)", 6: "camera (6 values a pixel)", 7: "action (7 values a pixel)"}


@dataclass(frozen=True)
class Checkpoint:
    """One expert on disk. `tensors` are all tensors by official name, the parts of 4-bit weights included;
    `four_bit` the 4-bit weights; `shapes` the logical shape of every parameter."""

    path: Path
    files: tuple[Path, ...]
    config: ModelConfig
    tensors: Mapping[str, TensorEntry] = field(repr=False)
    four_bit: Mapping[str, FourBitWeight] = field(repr=False)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def quantization(self) -> str | None:
        """ "nf4", "fp4", or None for plain weights."""
        kinds = sorted({weight.quant_type for weight in self.four_bit.values()})
        return "+".join(kinds) or None

    @cached_property
    def plain(self) -> dict[str, TensorEntry]:
        """The tensors that are parameters as they stand."""
        return {name: entry for name, entry in self.tensors.items()
                if name not in self.four_bit and component_owner(name) not in self.four_bit}  # fmt: skip

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.plain.items()} | {
            name: weight.shape for name, weight in self.four_bit.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: what the weights take in memory."""
        return sum(entry.nbytes for entry in self.tensors.values())

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def entries(self, names: Iterable[str]) -> list[TensorEntry]:
        """The tensors that make up these parameters, all parts of 4-bit weights included."""
        weights = ((name, self.four_bit.get(name)) for name in names)
        return [entry for name, weight in weights for entry in (weight.entries if weight else [self.tensors[name]])]

    def summary(self) -> dict:
        """What `lingbot-world inspect` prints."""
        dtypes = sorted({str(entry.dtype).removeprefix("torch.") for entry in self.plain.values()})
        return {
            "path": str(self.path),
            "kind": "LingBot-World expert" if self.config.control else "plain Wan expert",
            "files": [file.name for file in self.files],
            "bytes": self.nbytes,
            "parameters": self.parameters,
            "quantization": self.quantization or "none",
            "plain_dtypes": dtypes,
            "camera": _CAMERAS[self.config.control],
            "config": dataclasses.asdict(self.config),
        }


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Read the header(s) of an expert: a folder of the community package, a file (.safetensors, or .pt read as
    tensors only), one of a set of shards, or their index.

    A `config.json` beside the weights tells what tensors cannot (num_heads, text_len, eps).
    Raises CheckpointError for a file that is broken, of another kind, or whose tensors are not exactly those of the
    model that its shapes describe; all of them are reported at once.
    """
    path = Path(path).expanduser().absolute()
    files = weight_files(path)
    entries = _strip_prefix(_read_all(files))
    four_bit_parts = frozenset(key for key in entries if component_owner(key))
    owners = frozenset(component_owner(key) for key in four_bit_parts)
    refuse_other_kinds(path.name, entries, four_bit_parts | owners)
    four_bit = find_four_bit(path.name, entries)
    checkpoint = Checkpoint(path, files, None, entries, four_bit)
    told = _neighbour(files, "config.json")
    config = _config(checkpoint, told)
    _check_keys(path.name, checkpoint.shapes, config.parameter_shapes())
    _check_config(path.name, config, told)
    _check_meta(checkpoint, _neighbour(files, "quantization_meta.json"))
    return dataclasses.replace(checkpoint, config=config)


def _read_all(files: tuple[Path, ...]) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    for file in files:
        part = _read_file(file)
        twice = sorted(entries.keys() & part.keys())
        if twice:
            sample = ", ".join(twice[:3])
            raise CheckpointError(f"{file.name}: {len(twice)} tensors are in another shard as well ({sample})")
        entries |= part
    return entries


def _read_file(file: Path) -> dict[str, TensorEntry]:
    try:
        refuse_magic(file)
        with file.open("rb") as opened:
            is_zip = opened.read(4) == ZIP_MAGIC
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be opened ({error.strerror}); check the path and its rights") from error
    if not is_zip and looks_like_safetensors(file):
        return read_safetensors(file)
    return read_torch_file(file)


def _strip_prefix(entries: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    for prefix in PREFIXES:
        if any(key.startswith(prefix) for key in entries):
            stripped = {key.removeprefix(prefix): entry for key, entry in entries.items()}
            return {key: dataclasses.replace(entry, name=key) for key, entry in stripped.items()}
    return entries


def _neighbour(files: tuple[Path, ...], name: str) -> dict:
    beside = files[0].with_name(name)
    return read_json(beside) if beside.is_file() else {}


def _config(checkpoint: Checkpoint, told: dict) -> ModelConfig:
    known = {key: told[key] for key in _TOLD_BY_CONFIG if isinstance(told.get(key), int | float)}
    sizes = {key: known[key] for key in ("num_heads", "text_len") if key in known}
    try:
        config = ModelConfig.from_shapes(checkpoint.shapes, **sizes)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from error
    if "eps" in known:
        config = dataclasses.replace(config, eps=float(known["eps"]))
    return config


def _check_config(name: str, config: ModelConfig, told: dict) -> None:
    found = dataclasses.asdict(config)
    shared = found.keys() & told.keys()
    differing = [f"{key} {told[key]} (tensors: {found[key]})" for key in sorted(shared) if told[key] != found[key]]
    if differing:
        raise CheckpointError(f"{name}: its config.json belongs to another model: {', '.join(differing)}; "
                              "put the right config.json beside it, or none")  # fmt: skip


def _check_keys(name: str, found: Mapping[str, tuple], wanted: Mapping[str, tuple]) -> None:
    missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    misshaped = [f"{key} {list(found[key])} (expected {list(wanted[key])})" for key in wanted
                 if key in found and tuple(found[key]) != tuple(wanted[key])]  # fmt: skip
    lists = (("missing", missing), ("unexpected", unexpected), ("of another shape", misshaped))
    problems = [f"{len(keys)} {what}: {', '.join(keys[:5])}{', ...' if len(keys) > 5 else ''}"
                for what, keys in lists if keys]  # fmt: skip
    if problems:
        raise CheckpointError(f"{name}: not the tensors of an expert; {'; '.join(problems)}. Get the file again, or "
                              "check that it is the right one")  # fmt: skip


def _check_meta(checkpoint: Checkpoint, meta: dict) -> None:
    quant = meta.get("quant")
    told = quant.get("quant_type") if isinstance(quant, dict) else None
    if told is not None and told != checkpoint.quantization:
        found = checkpoint.quantization or "not quantized"
        raise CheckpointError(f"{checkpoint.name}: quantization_meta.json says {told}, the tensors are {found}; "
                              "the files do not belong together")  # fmt: skip
