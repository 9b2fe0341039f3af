"""LoRAs, which change a weight W to W + strength * alpha / rank * up @ down."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError, InputError
from ..options import LoraFile
from ..weights.files import read_tensors
from ..weights.quantized import UNSCALED
from ..weights.tensors import MappedFile, TensorEntry
from .loras.names import OTHER_KINDS, SCALES, LayerNames
from .loras.scale import StatedScale, find_scale

log = logging.getLogger(__name__)


class LoraChange(NamedTuple):
    """A LoRA's change of one parameter: `scale` * `up` @ `down`, or `scale` * `up` if `down` is None."""

    scale: float
    up: TensorEntry
    down: TensorEntry | None

    def apply_to(self, weight: Tensor) -> Tensor:
        """Return the sum of `weight`, which must be float32, and the change, as a new tensor on the weight's device."""
        up = self.up.view().to(weight.device, torch.float32).flatten(1 if self.down else 0)
        if self.down is None:
            return weight + self.scale * up.view(weight.shape)
        down = self.down.view().to(weight.device, torch.float32).flatten(1)
        return torch.addmm(weight.flatten(1), up, down, alpha=self.scale).view(weight.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.up.shape if self.down is None else (self.up.shape[0], *self.down.shape[1:]))

    def factors(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Return `scale` * `up` [out, rank] and `down` [rank, in], in `dtype` on `device`. If `down` is None, return
        `scale` * `up` [out, in] and None. Raise CheckpointError for NaN and infinity."""
        self.check()
        up = self.scale * self.up.view().to(device, torch.float32).flatten(1)
        return up.to(dtype), None if self.down is None else self.down.view().to(device, dtype).flatten(1)

    def check(self) -> None:
        """Raise CheckpointError if the change contains NaN or infinity."""
        for half in (self.up, self.down):
            if half is not None and not half.view().float().isfinite().all():
                raise CheckpointError(
                    f"{half.path}: {half.name} holds NaN or infinity, expected finite numbers; a "
                    "corrupt file, download it again"
                )


LoraChanges = Mapping[str, Sequence[LoraChange]]
"""The LoRAs' changes to a model, by the official name of the changed parameter."""


def loras_for(loras: Iterable[LoraFile], role: str) -> tuple[LoraFile, ...]:
    """Return the LoRAs for the expert `role`. A LoRA without a chosen expert applies to both."""
    return tuple(lora for lora in loras if lora.expert in (None, role))


def refuse_loras_for_one_expert(loras: Iterable[LoraFile], path: Path) -> None:
    """Raise InputError if a LoRA was chosen for one expert only. Call this for a model without experts, at `path`."""
    for_one = next((lora for lora in loras if lora.expert is not None), None)
    if for_one is not None:
        raise InputError(
            f"`lora`: {for_one.path} is for the {for_one.expert}-noise expert, and {path} is one model by "
            "itself; leave the `high=` or `low=` out"
        )


def lora_bytes(changes: LoraChanges) -> int:
    """Return the LoRAs' bytes on a GPU: the tensors, and a 16-bit temporary for the largest changed parameter."""
    every = [change for each in changes.values() for change in each]
    halves = sum(half.nbytes for change in every for half in (change.up, change.down) if half is not None)
    return halves + 2 * max((change.numel for change in every), default=0)


def read_loras(loras: Sequence[LoraFile], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[LoraChange]]:
    """Return the LoRAs' changes by parameter name. Raise CheckpointError for a LoRA that does not fit `shapes`."""
    changes: dict[str, list[LoraChange]] = {}
    for lora in loras:
        found = list(_read(lora, shapes))
        for name, change in found:
            changes.setdefault(name, []).append(change)
        if not any(change.scale for _, change in found):
            log.warning("%s: its scale is 0 in all layers, so it changes nothing.", lora.path)
    return changes


def _read(lora: LoraFile, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, LoraChange]]:
    entries = read_tensors(lora.path)
    layers: dict[str, _Layer] = {}
    strange, names = [], LayerNames(shapes)
    for key, entry in entries.items():
        part = names.part_of(key)
        if kind := next((kind for kind, parts in OTHER_KINDS.items() if part and part.role in parts), None):
            raise CheckpointError(f"{lora.path}: {kind} ({key}), and a plain LoRA is expected; it cannot be applied")
        if part is None or part.layer is None or entry.dtype not in UNSCALED and part.role not in SCALES:
            strange.append(key)
            continue
        found = layers.setdefault(part.layer, _Layer(part.layer, part.raw, {})).parts
        if part.role in found:
            raise CheckpointError(
                f"{lora.path}: {key} and {found[part.role].name} are the same part of {part.layer}; remove one"
            )
        found[part.role] = entry
    if strange or not layers:
        raise CheckpointError(
            f"{lora.path}: {len(strange)} of its {len(entries)} tensors belong to no layer of the model "
            f"({', '.join(strange[:3]) or 'it is empty'}), expected a LoRA for LingBot-World or Wan 2.2 A14B"
        )
    file = next(iter(entries.values()))
    header = file.source.metadata if isinstance(file.source, MappedFile) else {}
    stated = find_scale(file.path, header, entries.keys())
    for layer in layers.values():
        yield from _layer_changes(lora, layer, stated, shapes)


class _Layer(NamedTuple):
    name: str
    raw: str
    parts: dict[str, TensorEntry]


def _layer_changes(
    lora: LoraFile, layer: _Layer, stated: StatedScale, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, LoraChange]]:
    name, found = layer.name, layer.parts
    weight, bias = f"{name}.weight" if f"{name}.weight" in shapes else name, f"{name}.bias"
    for part, target in (("diff", weight), ("diff_m", weight), ("diff_b", bias)):
        if part in found:
            _check_fit(found[part].shape == shapes.get(target), lora, target, shapes.get(target), found[part].shape)
            yield target, LoraChange(lora.strength, found[part], None)
    up, down = found.get("up"), found.get("down")
    if up is None and down is None:
        if not found.keys() & {"diff", "diff_m", "diff_b"}:
            raise CheckpointError(f"{lora.path}: {name} has only {', '.join(found)}, and no tensor that is added")
        return
    if up is None or down is None or "down_bias" in found:
        raise CheckpointError(f"{lora.path}: {name} has only one half of a LoRA ({', '.join(found)})")
    rank, shape = down.shape[0] if down.shape else 0, shapes[weight]
    fits = (
        rank > 0
        and len(up.shape) > 1
        and math.prod(up.shape) == shape[0] * rank
        and math.prod(down.shape[1:]) == math.prod(shape[1:])
        and up.shape[0] == shape[0]
    )
    _check_fit(fits, lora, weight, shape, (*up.shape[:1], *down.shape[1:]))
    scale = lora.strength * _scale(lora, layer, stated, rank)
    yield weight, LoraChange(scale, up, down)
    if "up_bias" in found:
        _check_fit(found["up_bias"].shape == shapes.get(bias), lora, bias, shapes.get(bias), found["up_bias"].shape)
        yield bias, LoraChange(scale, found["up_bias"], None)


def _scale(lora: LoraFile, layer: _Layer, stated: StatedScale, rank: int) -> float:
    """Return the factor of `up` @ `down` without the user's strength. Scale tensors take precedence over `stated`."""
    values = {}
    for name in SCALES:
        if name in layer.parts:
            tensor = layer.parts[name].view()
            if tensor.numel() != 1 or not tensor.float().isfinite().all():
                found = f"{tensor.flatten()[:3].tolist()} of shape {list(tensor.shape)}"
                raise CheckpointError(f"{lora.path}: {name} of {layer.name} is {found}, expected a number")
            values[name] = tensor.float().item()
    if "scale" in values:
        scale = values["scale"]
    else:
        scale = values["alpha"] / rank if "alpha" in values else stated.scale_for(layer.raw, rank)
    return scale * values.get("scalar", 1.0)


def _check_fit(fits: bool, lora: LoraFile, name: str, wanted: tuple | None, got: tuple) -> None:
    if not fits:
        raise CheckpointError(
            f"{lora.path}: its change of {name} is {list(got)}, the weight is "
            f"{list(wanted) if wanted else 'missing'}; it is a LoRA for another model"
        )
