"""ComfyUI's quantized formats: finding a layer's tensors by name, and checks (source: ComfyUI's QUANTIZATION.md)."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ..errors import CheckpointError
from .scaled import E4M3, FLOAT8, INT8, MXFP8, NVFP4, TILE, TYPES, LayoutWeight, ScaledWeight, round_up
from .tensors import MappedFile, TensorEntry, are_equal

METADATA = "_quantization_metadata"
FORMATS = {
    E4M3: torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    INT8: torch.int8,
    NVFP4: torch.uint8,
    MXFP8: torch.float8_e4m3fn,
}
"""The dtype of a weight's stored values, by ComfyUI's name of the format."""
SCALES = ("weight_scale", "scale_weight", "weight_scale_2")
"""The name suffixes of a weight's scales; scale_weight is the older name of weight_scale."""
UNUSED = ("input_scale", "scale_input", "comfy_quant")
"""Names of tensors that decoding does not need: two names of the input's scale, and the format's description."""
SMOOTHED = "pre_quant_scale"

_PART = re.compile(rf"(.+)\.({'|'.join((*SCALES, *UNUSED, SMOOTHED))})$")
_MARK = "scaled_fp8"
LARGEST_VALUE, SAMPLED_ROWS = 200, 8
LARGEST_SCALE = 20
"""The maximum scale of a weight. A larger scale is refused, because the file probably stores reciprocal scales."""


def scale_owner(key: str) -> str | None:
    """Return the weight's name `X.weight` for a key such as `X.weight_scale` or `X.comfy_quant`; None for others."""
    match = _PART.match(key)
    return f"{match[1]}.weight" if match else None


def stated_formats(entries: Mapping[str, TensorEntry]) -> dict[str, Any]:
    """Return the format descriptions, stored as JSON in a file's metadata and tensors, by layer name (the weight's name
    without `.weight`). Raise CheckpointError for invalid JSON."""
    sources = {entry.source for entry in entries.values() if isinstance(entry.source, MappedFile)}
    stated: dict[str, Any] = {}
    for source in sources:
        layers = _parse(source.path, METADATA, source.metadata.get(METADATA, "{}")).get("layers", {})
        stated |= layers if isinstance(layers, dict) else {}
    for key, entry in entries.items():
        if key.endswith(".comfy_quant"):
            text = bytes(entry.view().contiguous().view(-1).view(torch.uint8).numpy())
            stated[key.removesuffix(".comfy_quant")] = _parse(entry.path, key, text)
    return stated


def _parse(path: object, key: str, text: object) -> dict:
    try:
        content = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {key} is not JSON ({error}); the file is corrupt, download it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: {key} is no JSON object; the file is corrupt, download it again")
    return content


def find_scaled(
    file: str, entries: Mapping[str, TensorEntry], stated: Mapping[str, Any]
) -> tuple[dict[str, ScaledWeight | LayoutWeight], dict[str, TensorEntry]]:
    """Return two dicts: the weights in ComfyUI's quantized formats, and the tensor entries. The entries include the
    weights' values and scales, but no tensors that decoding ignores, such as `input_scale`. `stated` has the format
    descriptions by weight name. Raise CheckpointError for an unreadable weight."""
    parts: dict[str, dict[str, TensorEntry]] = {}
    left: dict[str, TensorEntry] = {}
    for key, entry in entries.items():
        match = _PART.match(key)
        if match is None:
            left |= {} if key == _MARK else {key: entry}
        elif match[2] not in UNUSED:
            kind, owner = match[2].replace("scale_weight", "weight_scale"), f"{match[1]}.weight"
            name = f"{match[1]}.{kind}"
            twin = parts.get(owner, {}).get(kind)
            if twin is not None and not are_equal(twin, entry):
                raise CheckpointError(f"{file}: {owner} has two scales, weight_scale and scale_weight; remove one")
            parts.setdefault(owner, {})[kind] = left[name] = replace(entry, name=name)
    matrices = (key for key, entry in left.items() if len(entry.shape) == 2 and entry.dtype in FLOAT8)
    names = [key for key in matrices if scale_owner(key) is None]
    found, problems = {}, []
    scaled = {_without_index(name) for name, each in parts.items() if "weight_scale" in each}
    for name in dict.fromkeys((*names, *parts, *stated)):
        weight = _make_weight(left.get(name), parts.get(name, {}), stated.get(name))
        if name not in parts and name not in stated and _without_index(name) in scaled:
            weight = "it has no weight_scale, which this layer has in other blocks"
        if isinstance(weight, str):
            problems.append(f"{name}: {weight}")
        else:
            found[name] = weight
            left |= {entry.name: entry for entry in weight.entries}  # a scale may have got another shape
    if problems:
        more = f"; and {len(problems) - 3} more weights" if len(problems) > 3 else ""
        raise CheckpointError(
            f"{file}: quantized weights that cannot be read: {'; '.join(problems[:3])}{more}; use "
            "another file of this model"
        )
    return found, left


def _without_index(name: str) -> str:
    """Return a weight's name with its block index replaced by N, to compare layers across blocks."""
    return re.sub(r"\.\d+\.", ".N.", name, count=1)


def _make_weight(
    values: TensorEntry | None, parts: Mapping[str, TensorEntry], stated: Any
) -> ScaledWeight | LayoutWeight | str:
    """Build a quantized weight from the entry of its values (None: missing in the file), the entries of its scales by
    kind, and its format description `stated`. Return a message if the weight cannot be read."""
    description = stated if isinstance(stated, dict) else {}
    named, inner = description.get("format"), description.get("params")
    description = (inner if isinstance(inner, dict) else {}) | description
    if stated is not None and (not isinstance(named, str) or named not in FORMATS):
        return f"the format is {named!r:.50}, expected one of {', '.join(FORMATS)}"
    if SMOOTHED in parts:
        return f"it has a {SMOOTHED} (inputs are smoothed before the product), which is not applied here"
    if values is None:
        return "the weight itself is missing"
    if named in (NVFP4, MXFP8):
        return _value_error(values, named) or _block_scaled(named, values, parts)
    return _value_error(values, named) or _row_scaled(values, parts, named, description)


def _value_error(values: TensorEntry, named: str | None) -> str | None:
    dtype = FORMATS[named] if named else values.dtype
    if values.dtype == dtype and dtype in FORMATS.values() and len(values.shape) >= 2 and not values.block_format:
        return None
    kinds = named or " or ".join(str(each).removeprefix("torch.") for each in TYPES)
    return f"{values.dtype} {list(values.shape)} with a scale, expected a matrix of {kinds}"


def _row_scaled(
    values: TensorEntry, parts: Mapping[str, TensorEntry], named: str | None, description: Mapping[str, Any]
) -> ScaledWeight | LayoutWeight | str:
    scale = parts.get("weight_scale")
    if scale is not None and scale.shape == values.shape[:1] and len(values.shape) == 2:
        scale = replace(scale, shape=(*scale.shape, 1))  # some writers leave the second size out
    if "weight_scale_2" in parts or (values.dtype not in FLOAT8 and (scale is None or not named)):
        lacking = "its weight_scale" if named and scale is None else "the format that ComfyUI writes next to it"
        return f"{str(values.dtype).removeprefix('torch.')} without {lacking}"
    if fault := _scale_fault(scale, values):
        return fault
    if values.dtype != torch.int8 or not description.get("convrot") or scale is None:
        return ScaledWeight(values, scale)
    group = description.get("convrot_groupsize", 256)
    power_of_4 = type(group) is int and group >= 4 and group.bit_count() == 1 and group.bit_length() % 2 == 1
    if not power_of_4 or len(values.shape) != 2 or values.shape[1] % group:
        rotated = f"{list(values.shape)} rotated (convrot) in groups of {group!r:.20}"
        return f"{rotated}, expected a power of 4 that divides a row"
    return LayoutWeight(INT8, values, scale, group=group)


def _scale_fault(scale: TensorEntry | None, values: TensorEntry) -> str:
    if scale is None:
        return f"its values go beyond {LARGEST_VALUE}, so its weight_scale is missing" if _needs_scale(values) else ""
    if not _is_one_or_a_row(scale, values.shape):
        return f"its scale is {scale.dtype} {list(scale.shape)}, expected one float or [{values.shape[0]}, 1] floats"
    largest = max(scale.view().flatten()[:SAMPLED_ROWS].float().tolist(), default=0.0)
    return f"its scale is {largest:g}, it seems 1 / scale; expected below {LARGEST_SCALE}" * (largest > LARGEST_SCALE)


def _needs_scale(values: TensorEntry) -> bool:
    """Return whether a float8 weight's values are so large that a scale must be missing."""
    if "embed" in values.name or not math.prod(values.shape):
        return False
    return bool(values.view()[:SAMPLED_ROWS].float().abs().amax() > LARGEST_VALUE)


def _is_one_or_a_row(scale: TensorEntry, shape: tuple[int, ...]) -> bool:
    one = math.prod(scale.shape) == 1 and len(scale.shape) < 3
    return scale.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64) and (
        one or (len(shape) == 2 and scale.shape == (shape[0], 1))
    )


def _block_scaled(format_: str, values: TensorEntry, parts: Mapping[str, TensorEntry]) -> LayoutWeight | str:
    scale, scale_2 = parts.get("weight_scale"), parts.get("weight_scale_2")
    if scale is None or (scale_2 is None) == (format_ == NVFP4):
        wanted = "weight_scale and weight_scale_2" if format_ == NVFP4 else "weight_scale alone"
        return f"{format_} with {' and '.join(sorted(parts)) or 'no scale'}, expected {wanted}"
    weight = LayoutWeight(format_, values, scale, scale_2)
    multiple, kind = (16, torch.float8_e4m3fn) if format_ == NVFP4 else (32, torch.float8_e8m0fnu)
    if len(values.shape) != 2 or any(size % multiple for size in weight.shape):
        return f"{format_} {list(values.shape)}, expected a matrix of multiples of {multiple}"
    count = round_up(weight.shape[0], TILE) * round_up(weight.blocks, 4)
    if scale.dtype not in (kind, torch.uint8) or math.prod(scale.shape) != count:
        return f"its weight_scale is {scale.dtype} {list(scale.shape)}, expected {count:,} of {kind}"
    if scale_2 is not None and (scale_2.dtype != torch.float32 or math.prod(scale_2.shape) != 1):
        return f"its weight_scale_2 is {scale_2.dtype} {list(scale_2.shape)}, expected one of float32"
    return weight
