"""The 4-bit weights of a file: their tensors found by name, checked against each other, and made into parameters."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError, require
from ...model.matrix_8bit import EightBit
from ...model.pointwise import encode_8bit, or_else
from ...options import BLOCK_SIZES, T
from ..tensors import TensorEntry
from . import codec
from .codec import CODES, NESTED_BLOCKSIZE, Scales, decode, decode_rows, is_standard_code
from .weight import DecodedParameter

_COMPONENT = re.compile(r"(.+)\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.bitsandbytes__(\w+))$")
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


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
        nested_absmax, nested_code = (None if entry is None else tensors[entry.name]
                                      for entry in (self.nested_absmax, self.nested_code))  # fmt: skip
        return Scales(tensors[self.absmax.name], tensors[self.code.name], nested_absmax, nested_code, offset,
                      self.blocksize, self.nested_blocksize)  # fmt: skip

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
        return frozen_parameter(load_layouts().four_bit_tensor(
            tensors[self.packed.name], scales, self.shape, self.quant_type, state_dtype=self.state_dtype, dtype=dtype,
            standard_code=is_standard_code(self.code.view(), self.quant_type),  # of the file: it asks no GPU
        ))  # fmt: skip


class FourBitParameter(DecodedParameter):
    """A 4-bit weight: the packed bytes, and beside them what decodes them."""

    scales: Scales
    weight_shape: tuple[int, ...]

    @classmethod
    def of(cls, packed: Tensor, scales: Scales, shape: tuple[int, ...]) -> "FourBitParameter":
        """Over these tensors as they are: views of a mapped file, slices of a GPU buffer."""
        parameter = torch.Tensor._make_subclass(cls, packed, False)
        parameter.scales, parameter.weight_shape = scales, tuple(shape)
        return parameter

    def decode(self, dtype: torch.dtype) -> Tensor:
        """The weight in `dtype`, bit-equal to what bitsandbytes makes of it."""
        run = _fastest("decode_4bit", decode, self.device.type)
        return self._kept_or_made(dtype, lambda: run(self.data, self.scales, self.weight_shape, dtype))

    def recode(self, dtype: torch.dtype) -> EightBit:
        """The weight in 8 bits, int8 or float8_e4m3fn, with a scale for each row."""
        return self._kept_or_made(dtype, lambda: recode(self.data, self.scales, self.weight_shape, dtype))


def recode(packed: Tensor, scales: Scales, shape: tuple[int, ...], dtype: torch.dtype) -> EightBit:
    """`codec.recode`, or for a weight whose blocks reach over its rows the same of its decoded values."""
    if shape[1] % scales.blocksize:
        return encode_8bit(decode(packed, scales, shape, torch.float32), dtype=dtype)
    compiling = torch.compiler.is_compiling()
    run = codec.recode if compiling else _fastest("recode_4bit", codec.recode, packed.device.type)
    return run(packed, scales, shape, dtype)


@cache
def _fastest(name: str, plain: Callable[..., T], device_type: str) -> Callable[..., T]:
    """Our Triton kernel of that name on GPUs where Triton works, else `plain`."""
    if device_type != "cuda" or find_spec("triton") is None:
        return plain
    from ...model.kernels import weights_4bit as four_bit_kernels

    return or_else(getattr(four_bit_kernels, name), plain, name)


def load_layouts() -> ModuleType:
    """The module of the layouts. comfy_kitchen.tensor takes a second to import, so nothing imports it before use.

    Raises DependencyError where comfy-kitchen cannot be imported."""
    require("comfy_kitchen.tensor", "comfy-kitchen packaging")
    from . import layouts

    return layouts


def frozen_parameter(tensor: Any) -> torch.nn.Parameter:
    """`tensor` as a Parameter without gradient, still the same bytes.

    A quantized tensor is marked as a parameter in place: `Parameter(tensor)` would detach it, and comfy_kitchen's
    detach copies the scales, out of the mapped file into memory.
    """
    if not hasattr(tensor, "_qdata"):
        return torch.nn.Parameter(tensor, requires_grad=False)
    tensor._is_param = True
    return tensor


def component_owner(key: str) -> str | None:
    """The weight that a key like `X.weight.absmax` belongs to, None for other keys."""
    match = _COMPONENT.match(key)
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
            weights[name] = _weight(name, entries.get(name), found)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        more = f"; and {len(problems) - 5} more weights" if len(problems) > 5 else ""
        raise CheckpointError(f"{file}: broken 4-bit weights: {'; '.join(problems[:5])}{more}. Download the file again")
    return weights


def _weight(name: str, packed: TensorEntry | None, found: dict[str, TensorEntry]) -> FourBitWeight:
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
        name, state["quant_type"], tuple(state["shape"]), state["blocksize"],
        state.get("nested_blocksize", NESTED_BLOCKSIZE), state.get("nested_offset"), _DTYPES[state["dtype"]], packed,
        found["absmax"], found["quant_map"], found.get("nested_absmax"), found.get("nested_quant_map"),
    )  # fmt: skip
    _check_sizes(weight)
    return weight


def _read_state(name: str, entry: TensorEntry, suffix: str) -> dict:
    try:
        state = json.loads(bytes(entry.view().contiguous().view(torch.uint8).numpy()))
        kind, blocksize, dtype, shape = (state[key] for key in ("quant_type", "blocksize", "dtype", "shape"))
        kind, dtype = str(kind), str(dtype)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{name}: unreadable quant_state ({error})") from error
    _need(kind in CODES and kind == suffix, name,
          f"quant type {kind!r} under bitsandbytes__{suffix}, expected nf4 or fp4")  # fmt: skip
    _need(blocksize in BLOCK_SIZES, name, f"block size {blocksize}, expected one of {BLOCK_SIZES}")
    _need(dtype in _DTYPES, name, f"dtype {dtype!r}, expected one of {', '.join(_DTYPES)}")
    _need(isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and n > 0 for n in shape), name,
          f"shape {shape}, expected two positive sizes")  # fmt: skip
    if "nested_blocksize" in state or "nested_offset" in state:
        _need(state.get("nested_blocksize") in BLOCK_SIZES, name, f"nested block size {state.get('nested_blocksize')}")
        offset = state.get("nested_offset")
        _need(isinstance(offset, float | int) and math.isfinite(offset), name,
              f"nested offset {offset}, expected a finite number")  # fmt: skip
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
        _need(entry.dtype == dtype and found == count, weight.name,
              f"{component}: found {found:,} of {_short(entry.dtype)}, expected {count:,} of {_short(dtype)} "
              f"(shape {list(weight.shape)}, block size {weight.blocksize})")  # fmt: skip


def _need(condition: bool, name: str, problem: str) -> None:
    if not condition:
        raise CheckpointError(f"{name}: {problem}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
