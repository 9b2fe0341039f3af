"""The weights of a file in 4 and in 8 bits: their tensors found by name, checked, and made into parameters.

bitsandbytes' 4-bit `X.weight` has its scales and tables in tensors named `X.weight.*`, and JSON in a quant_state.
ComfyUI's 8-bit `X.weight` is float8_e4m3fn, float8_e5m2 or int8, `X.weight_scale` one number or one for each row. A
tensor `X.comfy_quant` (JSON) or `_quantization_metadata` in the header says what the layer is. Older files have
`X.scale_weight` and a tensor `scaled_fp8`, plain ones float8 and no scale. Sources: QUANTIZATION.md, comfy/utils.py
(`convert_old_quants`), comfy/ops.py (`_load_quantized_module`) of ComfyUI 0.33; layouts fp8 and int8 of comfy-kitchen.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..model.quantized.codec import CODES, NESTED_BLOCKSIZE, Scales, decode_rows
from ..model.quantized.parameters import FourBitParameter, ScaledParameter, frozen_parameter, load_layouts
from ..options import BLOCK_SIZES
from .tensors import MappedFile, TensorEntry

METADATA = "_quantization_metadata"
E4M3 = "float8_e4m3fn"
"""The format of a layer that `quantize` writes."""
FORMATS = {E4M3: torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2, "int8_tensorwise": torch.int8}
"""ComfyUI's names of the 8-bit formats that are read, and what their weights are stored as."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)

_FOUR_BIT_PART = re.compile(r"(.+)\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.bitsandbytes__\w+)$")
_STATE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SCALED_PART = re.compile(r"(.+)\.(weight_scale|scale_weight|input_scale|scale_input|comfy_quant)$")
_SCALED_MARK = "scaled_fp8"
_SCALED_LAYOUTS = dict.fromkeys(FLOAT8, "TensorCoreFP8Layout") | {torch.int8: "TensorWiseINT8Layout"}
_SCALED_TYPES = {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8_e5m2", torch.int8: "int8"}


@dataclass(frozen=True)
class FourBitWeight:
    """One quantized weight: the entries of its tensors and what its quant_state says."""

    name: str
    quant_type: str
    shape: tuple[int, ...]
    blocksize: int
    nested_blocksize: int
    offset: float | None
    state_dtype: torch.dtype
    packed: TensorEntry
    absmax: TensorEntry
    code: TensorEntry
    nested_absmax: TensorEntry | None = None
    nested_code: TensorEntry | None = None

    @property
    def entries(self) -> list[TensorEntry]:
        """The tensors that the decode needs; the quant_state is not among them."""
        entries = (self.packed, self.absmax, self.code, self.nested_absmax, self.nested_code)
        return [entry for entry in entries if entry is not None]

    def scales(self, tensors: Mapping[str, Tensor], offset: Tensor | None) -> Scales:
        """The scales made of these tensors; see `parameter`."""
        nested_absmax, nested_code = (
            None if entry is None else tensors[entry.name] for entry in (self.nested_absmax, self.nested_code)
        )
        return Scales(
            tensors[self.absmax.name],
            tensors[self.code.name],
            nested_absmax,
            nested_code,
            offset,
            self.blocksize,
            self.nested_blocksize,
        )

    def rows(self, rows: Tensor) -> Tensor:
        """float32 [len(rows), width]: these rows (int64) of the weight, read from the mapped file."""
        offset = None if self.offset is None else torch.tensor(self.offset, dtype=torch.float32)
        scales = self.scales({entry.name: entry.view() for entry in self.entries}, offset)
        return decode_rows(self.packed.view(), scales, self.shape, rows)

    def parameter(
        self, tensors: Mapping[str, Tensor], offset: Tensor | None, dtype: torch.dtype | None
    ) -> torch.nn.Parameter:
        """A frozen parameter over these tensors (by entry name): a FourBitParameter, or with `dtype` a QuantizedTensor
        declared as that.

        `offset` is the nested offset as a float32 scalar on the tensors' device."""
        scales = self.scales(tensors, offset)
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
                # The file's own table is looked at, not its copy on a GPU, which would have to be waited for.
                standard_code=torch.equal(self.code.view(), torch.tensor(CODES[self.quant_type])),
            )
        )


@dataclass(frozen=True)
class ScaledWeight:
    """One weight: where its values lie and its scale; None where it has none."""

    values: TensorEntry
    scale: TensorEntry | None
    offset: ClassVar[None] = None

    @property
    def quant_type(self) -> str:
        return _SCALED_TYPES[self.values.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def entries(self) -> list[TensorEntry]:
        return [self.values] if self.scale is None else [self.values, self.scale]

    def parameter(
        self, tensors: Mapping[str, Tensor], _offset: Tensor | None, dtype: torch.dtype | None
    ) -> torch.nn.Parameter:
        """A frozen parameter over these tensors (by entry name): a ScaledParameter, or with `dtype` a comfy_kitchen
        QuantizedTensor declared as that, of the layout that ComfyUI's own loader gives it."""
        values = tensors[self.values.name]
        scale = None if self.scale is None else tensors[self.scale.name]
        if dtype is None:
            return ScaledParameter.of(values, scale)
        scale = torch.ones((), device=values.device) if scale is None else scale
        return frozen_parameter(load_layouts().core_tensor(_SCALED_LAYOUTS[values.dtype], values, scale, dtype))


QuantizedWeight: TypeAlias = FourBitWeight | ScaledWeight


def quantized_tensors(
    weights: Mapping[str, QuantizedWeight],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    device: torch.device,
) -> dict[str, Tensor]:
    """The weights' parameters (see `FourBitWeight.parameter`) by name, over tensors on `device` by entry name."""
    nested = {name: weight.offset for name, weight in weights.items() if weight.offset is not None}
    # One small tensor holds all nested offsets, so that a single copy brings them to the device.
    offsets = dict(zip(nested, torch.tensor(list(nested.values()), dtype=torch.float32, device=device), strict=True))
    return {name: weight.parameter(tensors, offsets.get(name), dtype) for name, weight in weights.items()}


def component_owner(key: str) -> str | None:
    """The weight that a key like `X.weight.absmax` belongs to, None for other keys."""
    match = _FOUR_BIT_PART.match(key)
    return match[1] if match else None


def find_four_bit(file: str, entries: Mapping[str, TensorEntry]) -> dict[str, FourBitWeight]:
    """All 4-bit weights by name. Raises one CheckpointError with everything that is wrong about them."""
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
    _need(bool(state_keys), name, "its quant_state.bitsandbytes__nf4 is missing")
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
    _need(
        kind in CODES and kind == suffix, name, f"quant type {kind!r} under bitsandbytes__{suffix}, expected nf4 or fp4"
    )
    _need(blocksize in BLOCK_SIZES, name, f"block size {blocksize}, expected one of {BLOCK_SIZES}")
    _need(dtype in _STATE_DTYPES, name, f"dtype {dtype!r}, expected one of {', '.join(_STATE_DTYPES)}")
    _need(
        isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape),
        name,
        f"shape {shape}, expected two positive sizes",
    )
    if "nested_blocksize" in state or "nested_offset" in state:
        _need(state.get("nested_blocksize") in BLOCK_SIZES, name, f"nested block size {state.get('nested_blocksize')}")
        offset = state.get("nested_offset")
        _need(
            isinstance(offset, float | int) and math.isfinite(offset),
            name,
            f"nested offset {offset}, expected a finite number",
        )
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
        _need(
            entry.dtype == dtype and found == count,
            weight.name,
            f"{component}: found {found:,} of {entry.dtype}, expected {count:,} of {dtype} (shape "
            f"{list(weight.shape)}, block size {weight.blocksize})".replace("torch.", ""),
        )


def _need(condition: bool, name: str, problem: str) -> None:
    if not condition:
        raise CheckpointError(f"{name}: {problem}")


def scale_owner(key: str) -> str | None:
    """The weight that a key like `X.weight_scale` belongs to, None for other keys."""
    match = _SCALED_PART.match(key)
    return f"{match[1]}.weight" if match else None


def stated_formats(entries: Mapping[str, TensorEntry]) -> dict[str, Any]:
    """What a file says of its layers, by name: the headers' `_quantization_metadata` and the tensors `X.comfy_quant`.
    Raises CheckpointError for what is no JSON."""
    sources = {entry.source for entry in entries.values() if isinstance(entry.source, MappedFile)}
    stated: dict[str, Any] = {}
    for source in sources:
        layers = _parsed(source.path, METADATA, source.metadata.get(METADATA, "{}")).get("layers", {})
        stated |= layers if isinstance(layers, dict) else {}
    for key, entry in entries.items():
        if key.endswith(".comfy_quant"):
            text = bytes(entry.view().contiguous().view(-1).view(torch.uint8).numpy())
            stated[key.removesuffix(".comfy_quant")] = _parsed(entry.path, key, text)
    return stated


def _parsed(path: object, key: str, text: object) -> dict:
    try:
        content = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {key} is not JSON ({error}); the file is corrupt, download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: {key} is no JSON object; the file is corrupt, download it again")
    return content


def find_scaled(
    file: str, entries: Mapping[str, TensorEntry], stated: Mapping[str, Any]
) -> tuple[dict[str, ScaledWeight], dict[str, TensorEntry]]:
    """All 8-bit weights by name, and the entries less what only tells of them. `stated` is what `stated_formats` gave,
    by the weights' names in `entries`. Raises one CheckpointError with everything that is wrong about them."""
    scales, left = {}, {}
    for key, entry in entries.items():
        owner = scale_owner(key)
        if owner is None and key != _SCALED_MARK:
            left[key] = entry
        elif owner is not None and key.endswith(("weight_scale", "scale_weight")):
            name = f"{owner}_scale"
            scales[owner] = left[name] = replace(entry, name=name)
    names = [key for key, entry in left.items() if len(entry.shape) == 2 and entry.dtype in FLOAT8]
    names += [name for name in (*scales, *stated) if name not in names]
    found, problems = {}, []
    for name in dict.fromkeys(names):
        problem = _scaled_problem(left.get(name), scales.get(name), stated.get(name))
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            found[name] = ScaledWeight(left[name], scales.get(name))
    if problems:
        more = f"; and {len(problems) - 3} more weights" if len(problems) > 3 else ""
        raise CheckpointError(
            f"{file}: 8-bit weights that cannot be read: {'; '.join(problems[:3])}{more}; use "
            "another file of this model"
        )
    return found, left


def _scaled_problem(values: TensorEntry | None, scale: TensorEntry | None, stated: Any) -> str | None:
    """Why a weight with this scale, of which a file says `stated`, cannot be read."""
    told = stated if isinstance(stated, dict) else {}
    named, params = told.get("format"), told.get("params")
    rotated = told.get("convrot", isinstance(params, dict) and params.get("convrot"))
    if stated is not None and (rotated or not isinstance(named, str) or named not in FORMATS):
        kind = f"{named} with rotated weights (convrot)" if rotated else f"{named!r:.50}"
        return f"the format is {kind}, expected one of {', '.join(FORMATS)}"
    if values is None:
        return "the weight itself is missing"
    dtype = FORMATS[named] if named else values.dtype
    if (values.dtype, len(values.shape)) != (dtype, 2) or dtype not in _SCALED_TYPES:
        return f"{values.dtype} {list(values.shape)} with a scale, expected a matrix of {named or ' or '.join(FORMATS)}"
    if dtype == torch.int8 and (scale is None or not named):
        return f"int8 without {'its weight_scale' if named else 'the format that ComfyUI writes beside it'}"
    found = (1,) if scale is None else scale.shape
    one_or_a_row = math.prod(found) == 1 and len(found) < 3 or found == (values.shape[0], 1)
    if scale is not None and not (scale.dtype.is_floating_point and one_or_a_row):
        return f"its scale is {scale.dtype} {list(scale.shape)}, expected float32, one or one for each row"
    return None
