"""8-bit weights with a scale, as ComfyUI's files have them: found by name, checked, and made into parameters.

`X.weight` is float8_e4m3fn, float8_e5m2 or int8, `X.weight_scale` one number or one for each row. A tensor
`X.comfy_quant` (JSON) or `_quantization_metadata` in the header says what the layer is. Older files have
`X.scale_weight` and a tensor `scaled_fp8`, plain ones float8 and no scale. Sources: QUANTIZATION.md, comfy/utils.py
(`convert_old_quants`), comfy/ops.py (`_load_quantized_module`) of ComfyUI 0.33; layouts fp8 and int8 of comfy-kitchen.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...errors import CheckpointError
from ...model.matrix_8bit import LARGEST, EightBit
from ...model.pointwise import encode_8bit, slices
from ..tensors import MappedFile, TensorEntry
from .four_bit import frozen_parameter, load_layouts
from .weight import DecodedParameter

METADATA = "_quantization_metadata"
E4M3 = "float8_e4m3fn"
"""The format of a layer that `quantize` writes."""
FORMATS = {E4M3: torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2, "int8_tensorwise": torch.int8}
"""ComfyUI's names of the formats that are read, and what their weights are stored as."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_LAYOUTS = dict.fromkeys(FLOAT8, "TensorCoreFP8Layout") | {torch.int8: "TensorWiseINT8Layout"}
_TYPES = {torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8_e5m2", torch.int8: "int8"}
_PART = re.compile(r"(.+)\.(weight_scale|scale_weight|input_scale|scale_input|comfy_quant)$")
_MARK = "scaled_fp8"
_ROWS = 256
"""Rows that are in float32 at a time."""


@dataclass(frozen=True)
class ScaledWeight:
    """One weight: where its values lie and its scale; None where it has none."""

    values: TensorEntry
    scale: TensorEntry | None
    offset: ClassVar[None] = None

    @property
    def quant_type(self) -> str:
        return _TYPES[self.values.dtype]

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
        return frozen_parameter(load_layouts().core_tensor(_LAYOUTS[values.dtype], values, scale, dtype))


class ScaledParameter(DecodedParameter):
    """An 8-bit weight: its values, and beside them its scale."""

    scale: Tensor | None

    @classmethod
    def of(cls, values: Tensor, scale: Tensor | None) -> "ScaledParameter":
        """Over these tensors as they are: views of a mapped file, slices of a GPU buffer."""
        parameter = torch.Tensor._make_subclass(cls, values, False)
        parameter.scale = scale
        return parameter

    def decode(self, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, as ComfyUI decodes it: float8 times the scale in `dtype`, int8 times it in float32."""
        return self._kept_or_made(dtype, lambda: decode(self.data, self.scale, dtype))

    def recode(self, dtype: torch.dtype) -> EightBit:
        """The weight in 8 bits, int8 or float8_e4m3fn, with a scale for each row: its own values if they are that."""
        if self.dtype == dtype:
            return recode(self.data, self.scale, dtype)
        return self._kept_or_made(dtype, lambda: recode(self.data, self.scale, dtype))


def decode(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """See `ScaledParameter.decode`."""
    if scale is None:
        return values.to(dtype)
    if values.dtype == torch.int8:
        return values.float().mul_(scale).to(dtype)
    return values.to(dtype).mul_(scale.to(dtype))


def recode(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> EightBit:
    """See `ScaledParameter.recode`."""
    scales = torch.ones((), device=values.device) if scale is None else scale.float()
    if values.dtype == dtype:
        return EightBit(values, scales.expand(len(values), 1).contiguous())
    return encode_8bit(values.float() * scales, dtype=dtype)


def encode(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in float8_e4m3fn with one scale (float32, []). The scale is a power of two, so that the weight is the
    same number in bf16 and in fp32."""
    largest = LARGEST[torch.float8_e4m3fn]
    share = torch.stack(weight.aminmax()).abs().amax().float().clamp_min(1e-30) / largest
    scale = torch.exp2(torch.ceil(torch.log2(share)))
    values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn, device=weight.device)
    for part in slices(len(weight), _ROWS):
        values[part] = (weight[part].float() / scale).clamp_(-largest, largest).to(values.dtype)
    return values, scale


def squared_error(weight: Tensor, values: Tensor, scale: Tensor) -> float:
    """The sum of the squared differences between a weight and what was encoded: float32 within each part."""
    parts = slices(len(weight), _ROWS)
    return sum((values[part].float() * scale).sub_(weight[part]).square_().sum().item() for part in parts)


def scale_owner(key: str) -> str | None:
    """The weight that a key like `X.weight_scale` belongs to, None for other keys."""
    match = _PART.match(key)
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
        if owner is None and key != _MARK:
            left[key] = entry
        elif owner is not None and key.endswith(("weight_scale", "scale_weight")):
            name = f"{owner}_scale"
            scales[owner] = left[name] = replace(entry, name=name)
    names = [key for key, entry in left.items() if len(entry.shape) == 2 and entry.dtype in FLOAT8]
    names += [name for name in (*scales, *stated) if name not in names]
    found, problems = {}, []
    for name in dict.fromkeys(names):
        problem = _problem(left.get(name), scales.get(name), stated.get(name))
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            found[name] = ScaledWeight(left[name], scales.get(name))
    if problems:
        more = f"; and {len(problems) - 3} more weights" if len(problems) > 3 else ""
        raise CheckpointError(f"{file}: 8-bit weights that cannot be read: {'; '.join(problems[:3])}{more}; use "
                              "another file of this model")  # fmt: skip
    return found, left


def _problem(values: TensorEntry | None, scale: TensorEntry | None, stated: Any) -> str | None:
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
    if (values.dtype, len(values.shape)) != (dtype, 2) or dtype not in _TYPES:
        return f"{values.dtype} {list(values.shape)} with a scale, expected a matrix of {named or ' or '.join(FORMATS)}"
    if dtype == torch.int8 and (scale is None or not named):
        return f"int8 without {'its weight_scale' if named else 'the format that ComfyUI writes beside it'}"
    found = (1,) if scale is None else scale.shape
    one_or_a_row = math.prod(found) == 1 and len(found) < 3 or found == (values.shape[0], 1)
    if scale is not None and not (scale.dtype.is_floating_point and one_or_a_row):
        return f"its scale is {scale.dtype} {list(scale.shape)}, expected float32, one or one for each row"
    return None
