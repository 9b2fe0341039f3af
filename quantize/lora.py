"""LoRAs that are merged into the weights before these are quantized: W + strength * alpha / rank * up @ down."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..loaders.files import read_tensors
from ..loaders.tensors import TensorEntry

_PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "model.")
_PART = re.compile(r"(.+?)\.(lora_A|lora_B|lora_down|lora_up|alpha|diff|diff_b)(?:\.default)?(?:\.weight)?$")
_ROLES = {"lora_A": "down", "lora_B": "up", "lora_down": "down", "lora_up": "up"}


@dataclass(frozen=True)
class LoraFile:
    """A LoRA's file and strength; `expert` is "high" or "low" where it is meant for one expert only."""

    path: Path
    strength: float = 1.0
    expert: str | None = None


class Change(NamedTuple):
    """What is added to a weight: `scale` times `up` @ `down`, or times `up` where there is no `down`."""

    scale: float
    up: TensorEntry
    down: TensorEntry | None

    def added_to(self, weight: Tensor) -> Tensor:
        """The sum in float32, on the weight's device."""
        up = self.up.view().to(weight.device, torch.float32).flatten(1 if self.down else 0)
        if self.down is None:
            return weight + self.scale * up.view(weight.shape)
        down = self.down.view().to(weight.device, torch.float32).flatten(1)
        return torch.addmm(weight.flatten(1), up, down, alpha=self.scale).view(weight.shape)


def read_loras(loras: Sequence[LoraFile], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[Change]]:
    """What the LoRAs add to each parameter of a model of these shapes.

    Official Wan names with the prefixes of ComfyUI, PEFT and kohya are known, `lora_A/lora_B`, `lora_down/lora_up` with
    `alpha`, and `diff/diff_b`. Raises CheckpointError for a LoRA of which not every tensor fits.
    """
    changes: dict[str, list[Change]] = {}
    for lora in loras:
        for name, change in _read(lora, shapes).items():
            changes.setdefault(name, []).append(change)
    return changes


def _read(lora: LoraFile, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Change]:
    parts: dict[str, dict[str, TensorEntry]] = {}
    strange = []
    layers = {name.removesuffix(".weight").replace(".", "_"): name.removesuffix(".weight") for name in shapes}
    for key, entry in read_tensors(lora.path).items():
        match = _PART.match(key)
        layer = _layer(match[1], layers) if match else None
        if match is None or layer is None:
            strange.append(key)
            continue
        parts.setdefault(layer, {})[_ROLES.get(match[2], match[2])] = entry
    if strange or not parts:
        sample = ", ".join(strange[:3]) or "nothing"
        raise CheckpointError(f"{lora.path}: {len(strange)} of its tensors belong to no layer of the model ({sample}), "
                              "expected a LoRA for LingBot-World or Wan 2.2 A14B in the official key names"
                              )  # fmt: skip
    return {name: change for layer, found in parts.items() for name, change in _changes(lora, layer, found, shapes)}


def _layer(name: str, layers: Mapping[str, str]) -> str | None:
    """The model's layer (or parameter) that a LoRA's key names, with dots or as kohya does, with underscores."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return layers.get(name.removeprefix("lora_unet_").replace(".", "_"))


def _changes(
    lora: LoraFile, layer: str, found: dict[str, TensorEntry], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, Change]]:
    weight = f"{layer}.weight" if f"{layer}.weight" in shapes else layer
    for part, name in (("diff", weight), ("diff_b", f"{layer}.bias")):
        if part in found:
            _need(found[part].shape == shapes.get(name), lora, name, shapes.get(name), found[part].shape)
            yield name, Change(lora.strength, found[part], None)
    up, down = found.get("up"), found.get("down")
    if up is None and down is None:
        return
    if up is None or down is None:
        raise CheckpointError(f"{lora.path}: {layer} has only one half of a LoRA ({', '.join(found)})")
    rank, shape = down.shape[0] if down.shape else 0, shapes[weight]
    fits = len(up.shape) > 1 and math.prod(up.shape) == shape[0] * rank and math.prod(down.shape[1:]) == math.prod(
        shape[1:]) and up.shape[0] == shape[0]  # fmt: skip
    _need(fits, lora, weight, shape, (*up.shape[:1], *down.shape[1:]))
    alpha = found["alpha"].view().float().item() if "alpha" in found else rank
    yield weight, Change(lora.strength * alpha / rank, up, down)


def _need(fits: bool, lora: LoraFile, name: str, wanted: tuple | None, got: tuple) -> None:
    if not fits:
        raise CheckpointError(f"{lora.path}: its change of {name} is {list(got)}, the weight is "
                              f"{list(wanted) if wanted else 'missing'}; it is a LoRA for another model")  # fmt: skip
