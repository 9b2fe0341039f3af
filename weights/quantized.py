"""The quantized weights of any model file: detection by name, checks, and conversion to parameters."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..model.quantized.codec import CODES, NESTED_BLOCKSIZE, Scales, decode_rows
from ..model.quantized.parameters import FourBitParameter, frozen_parameter, load_layouts
from ..options import BLOCK_SIZES
from .comfy import find_scaled, scale_owner, stated_formats
from .gguf_file import BlockWeight
from .scaled import FLOAT8, LayoutWeight, ScaledWeight
from .tensors import TensorEntry, are_equal

UNSCALED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, *FLOAT8)
"""The dtypes of weights that may lack a scale. A float8 weight without a scale has scale 1."""

_FOUR_BIT_PART = re.compile(r"(.+)\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.bitsandbytes__\w+)$")
_STATE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class FourBitWeight:
    """A 4-bit weight of bitsandbytes in a file.

    quant_type: "nf4" or "fp4".
    shape: the shape after decoding.
    blocksize, nested_blocksize: the values per scale, and the scales per nested scale.
    nested_offset, nested_absmax, nested_code: decode double-quantized scales; None for float scales.
    state_dtype: the weight's dtype before quantization.
    code: the table of 16 values.
    """

    name: str
    quant_type: str
    shape: tuple[int, ...]
    blocksize: int
    nested_blocksize: int
    nested_offset: float | None
    state_dtype: torch.dtype
    packed: TensorEntry
    absmax: TensorEntry
    code: TensorEntry
    nested_absmax: TensorEntry | None = None
    nested_code: TensorEntry | None = None

    @property
    def entries(self) -> list[TensorEntry]:
        """The file entries that decoding needs."""
        entries = (self.packed, self.absmax, self.code, self.nested_absmax, self.nested_code)
        return [entry for entry in entries if entry is not None]

    def _scales(self, tensors: Mapping[str, Tensor]) -> Scales:
        nested_absmax, nested_code = (
            None if entry is None else tensors[entry.name] for entry in (self.nested_absmax, self.nested_code)
        )
        return Scales(
            tensors[self.absmax.name],
            tensors[self.code.name],
            nested_absmax,
            nested_code,
            tensors.get(f"{self.name}.nested_offset"),
            self.blocksize,
            self.nested_blocksize,
        )

    def rows(self, rows: Tensor) -> Tensor:
        """Read and decode the rows with indices `rows` (int64 [n]) from the mapped file, as float32 [n, width]."""
        tensors = {entry.name: entry.view() for entry in self.entries}
        weight = quantized_tensors({self.name: self}, tensors, None, torch.device("cpu"))[self.name]
        return decode_rows(weight.data, cast(FourBitParameter, weight).scales, self.shape, rows)

    def parameter(self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> torch.nn.Parameter:
        """Return a QuantizedTensor that decodes to `dtype`, or a FourBitParameter if `dtype` is None. `tensors` are the
        file's loaded tensors by name. For double-quantized scales they include the offset as `NAME.nested_offset`; NAME
        is the weight's name."""
        scales = self._scales(tensors)
        if dtype is None:
            return FourBitParameter.of(tensors[self.packed.name], scales, self.shape)
        return frozen_parameter(
            load_layouts().four_bit_tensor(
                tensors[self.packed.name],
                scales,
                self.shape,
                self.quant_type,
                state_dtype=self.state_dtype,
                dtype=dtype,
                # Compares the file's own table, because its copy on a GPU would force a synchronization.
                standard_code=torch.equal(self.code.view(), torch.tensor(CODES[self.quant_type])),
            )
        )


QuantizedWeight: TypeAlias = FourBitWeight | ScaledWeight | LayoutWeight | BlockWeight


def find_quantized(
    file: str, entries: Mapping[str, TensorEntry], name_of: Callable[[str], str | None]
) -> tuple[dict[str, TensorEntry], dict[str, QuantizedWeight]]:
    """Return two dicts by the names from `name_of`: a file's tensor entries, including the parts of quantized weights,
    and the quantized weights. Tensors for which `name_of` returns None are dropped. Raise CheckpointError for
    unreadable or contradictory weights."""
    named: dict[str, TensorEntry] = {}
    for key, entry in entries.items():
        if (name := name_of(key)) is not None:
            if name in named and not are_equal(named[name], entry):
                raise CheckpointError(f"{file}: {key} is a second, differing {name}; use another file of this model")
            named[name] = replace(entry, name=name)
    stated = {name: text for layer, text in stated_formats(entries).items() if (name := name_of(f"{layer}.weight"))}
    scaled, tensors = find_scaled(file, named, stated)
    blocks = {
        name: BlockWeight(entry, entry.block_format.kind, entry.block_format.shape)
        for name, entry in tensors.items()
        if entry.block_format is not None
    }
    quantized = {**find_four_bit(file, tensors), **scaled, **blocks}
    owned = {entry.name for weight in quantized.values() for entry in weight.entries}
    for key, entry in tensors.items():
        if key not in owned and component_owner(key) is None and entry.dtype not in UNSCALED:
            raise CheckpointError(
                f"{file}: {key} is {str(entry.dtype).removeprefix('torch.')} without a bitsandbytes quant_state or "
                "ComfyUI's weight_scale, expected floats; use another file of this model"
            )
    return tensors, quantized


def owner_of(key: str) -> str | None:
    """Return the name of the quantized weight that a scale's or table's key belongs to, or None for other keys."""
    return component_owner(key) or scale_owner(key)


def shapes_of(
    tensors: Mapping[str, TensorEntry], quantized: Mapping[str, QuantizedWeight]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter in a file, after decoding."""
    return {
        key: quantized[key].shape if key in quantized else entry.shape
        for key, entry in tensors.items()
        if owner_of(key) is None
    }


def shape_differences(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> str:
    """Return a text that lists missing tensors, unexpected tensors and tensors of another shape than in `wanted`, at
    most five of each. Return "" if there are none."""
    misshaped = [
        f"{name} {list(found[name])} (expected {list(shape)})"
        for name, shape in wanted.items()
        if found.get(name, shape) != shape
    ]
    lists = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unexpected": sorted(found.keys() - wanted.keys()),
        "of another shape": misshaped,
    }
    return "; ".join(
        f"{len(names)} {kind}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        for kind, names in lists.items()
        if names
    )


def quantization_of(quantized: Mapping[str, QuantizedWeight]) -> str | None:
    """Return the formats of quantized weights, such as "nf4" or "Q4_K+Q6_K", or None if `quantized` is empty."""
    return "+".join(sorted({weight.quant_type for weight in quantized.values()})) or None


def quantized_tensors(
    weights: Mapping[str, QuantizedWeight],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return quantized weights as parameters by name: QuantizedTensors that decode to `dtype`, or DecodedParameters if
    `dtype` is None. `tensors` are the file's tensors by name, already on `device`."""
    four_bit = (weight for weight in weights.values() if isinstance(weight, FourBitWeight))
    nested = {f"{each.name}.nested_offset": each.nested_offset for each in four_bit if each.nested_offset is not None}
    # One small tensor holds all nested offsets, so that a single copy moves them to the device.
    offsets = torch.tensor(list(nested.values()), dtype=torch.float32, device=device)
    tensors = {**tensors, **dict(zip(nested, offsets, strict=True))}
    return {name: weight.parameter(tensors, dtype) for name, weight in weights.items()}


def component_owner(key: str) -> str | None:
    """Return the name of the 4-bit weight that a key such as `X.weight.absmax` belongs to; None for other keys."""
    match = _FOUR_BIT_PART.match(key)
    return match[1] if match else None


def find_four_bit(file: str, entries: Mapping[str, TensorEntry]) -> dict[str, FourBitWeight]:
    """Return all 4-bit weights of bitsandbytes by name. Raise CheckpointError for broken weights."""
    components: dict[str, dict[str, TensorEntry]] = {}
    for key, entry in entries.items():
        if owner := component_owner(key):
            components.setdefault(owner, {})[key.removeprefix(owner + ".")] = entry
    weights, problems = {}, []
    for name, found in components.items():
        try:
            weights[name] = _four_bit_weight(name, entries.get(name), found)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        more = f"; and {len(problems) - 5} more weights" if len(problems) > 5 else ""
        raise CheckpointError(f"{file}: broken 4-bit weights: {'; '.join(problems[:5])}{more}. Download the file again")
    return weights


def _four_bit_weight(name: str, packed: TensorEntry | None, found: dict[str, TensorEntry]) -> FourBitWeight:
    state_keys = [key for key in found if key.startswith("quant_state.")]
    _require(bool(state_keys), name, "its quant_state.bitsandbytes__nf4 is missing")
    state = _read_state(name, found[state_keys[0]], state_keys[0].rpartition("__")[2])
    nested = "nested_offset" in state or "nested_absmax" in found
    wanted = ["absmax", "quant_map"] + ["nested_absmax", "nested_quant_map"] * nested
    missing = [key for key in wanted if key not in found] + ["the weight itself"] * (packed is None)
    missing += ["nested_offset of the quant_state"] * (nested and "nested_offset" not in state)
    if packed is None or missing:
        raise CheckpointError(f"{name}: {', '.join(missing)} missing")
    weight = FourBitWeight(
        name,
        state["quant_type"],
        tuple(state["shape"]),
        state["blocksize"],
        state.get("nested_blocksize", NESTED_BLOCKSIZE),
        state.get("nested_offset"),
        _STATE_DTYPES[state["dtype"]],
        packed,
        found["absmax"],
        found["quant_map"],
        found.get("nested_absmax"),
        found.get("nested_quant_map"),
    )
    _check_sizes(weight)
    return weight


def _read_state(name: str, entry: TensorEntry, suffix: str) -> dict:
    try:
        state = json.loads(bytes(entry.view().contiguous().view(torch.uint8).numpy()))
        kind, blocksize, dtype, shape = (state[key] for key in ("quant_type", "blocksize", "dtype", "shape"))
        kind, dtype = str(kind), str(dtype)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{name}: unreadable quant_state ({error})") from error
    sizes = isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape)
    fits = kind in CODES and kind == suffix
    _require(fits, name, f"quant type {kind!r} under bitsandbytes__{suffix}, expected nf4 or fp4")
    _require(blocksize in BLOCK_SIZES, name, f"block size {blocksize}, expected one of {BLOCK_SIZES}")
    _require(dtype in _STATE_DTYPES, name, f"dtype {dtype!r}, expected one of {', '.join(_STATE_DTYPES)}")
    _require(sizes, name, f"shape {shape}, expected two positive sizes")
    if "nested_blocksize" in state or "nested_offset" in state:
        blocksize, offset = state.get("nested_blocksize"), state.get("nested_offset")
        finite = isinstance(offset, float | int) and math.isfinite(offset)
        _require(blocksize in BLOCK_SIZES, name, f"nested block size {blocksize}")
        _require(finite, name, f"nested offset {offset}, expected a finite number")
    return state


def _check_sizes(weight: FourBitWeight) -> None:
    values = math.prod(weight.shape)
    blocks = -(-values // weight.blocksize)
    absmax_dtype = torch.float32 if weight.nested_absmax is None else torch.uint8
    wanted = {
        "packed bytes": (weight.packed, torch.uint8, -(-values // 2)),
        "absmax": (weight.absmax, absmax_dtype, blocks),
        "quant_map": (weight.code, torch.float32, 16),
    }
    if weight.nested_absmax is not None and weight.nested_code is not None:
        wanted["nested_absmax"] = (weight.nested_absmax, torch.float32, -(-blocks // weight.nested_blocksize))
        wanted["nested_quant_map"] = (weight.nested_code, torch.float32, 256)
    for component, (entry, dtype, count) in wanted.items():
        found = math.prod(entry.shape)
        _require(
            entry.dtype == dtype and found == count,
            weight.name,
            f"{component}: found {found:,} of {entry.dtype}, expected {count:,} of {dtype} (shape "
            f"{list(weight.shape)}, block size {weight.blocksize})".replace("torch.", ""),
        )


def _require(condition: bool, name: str, problem: str) -> None:
    if not condition:
        raise CheckpointError(f"{name}: {problem}")
