"""LoRAs: W + strength * alpha / rank * up @ down. The quantizer merges them into the weights before it rounds these; a
model that is loaded with them has the sum made whenever a weight is used, and its 4-bit weights stay as they are."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError, InputError
from ..options import LoraFile
from .files import read_tensors
from .tensors import TensorEntry

_PREFIXES = ("base_model.model.", "model.diffusion_model.", "diffusion_model.", "transformer.", "model.")
_PART = re.compile(r"(.+?)\.(lora_A|lora_B|lora_down|lora_up|alpha|diff|diff_b)(?:\.default)?(?:\.weight)?$")
_ROLES = {"lora_A": "down", "lora_B": "up", "lora_down": "down", "lora_up": "up"}


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

    @property
    def values(self) -> int:
        """Numbers of the weight that it is added to."""
        return math.prod(self.up.shape if self.down is None else (self.up.shape[0], *self.down.shape[1:]))

    def factors(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """up, with the scale in it, and down, as matrices on a device. Raises CheckpointError for NaN and infinity."""
        self.check()
        up = self.scale * self.up.view().to(device, torch.float32).flatten(1)
        return up.to(dtype), None if self.down is None else self.down.view().to(device, dtype).flatten(1)

    def check(self) -> None:
        """Raises CheckpointError for NaN and infinity."""
        for half in (self.up, self.down):
            if half is not None and not half.view().isfinite().all():
                raise CheckpointError(
                    f"{half.path}: {half.name} holds NaN or infinity, expected finite numbers; a "
                    "corrupt file, download it again"
                )


Changes = Mapping[str, Sequence[Change]]
"""What is added to parameters, by name."""


def is_lora_of(name: str) -> Literal["high", "low"] | None:
    """Which expert a LoRA is for, by the name of its file, such as `..._high_noise.safetensors`."""
    told = set(re.findall(r"(?<![a-z])(high|low)(?![a-z])", Path(name).stem.lower()))
    return None if len(told) != 1 else "high" if "high" in told else "low"


def loras_for(loras: Iterable[LoraFile], role: str) -> tuple[LoraFile, ...]:
    """Those for the expert of a role, "high" or "low"."""
    return tuple(lora for lora in loras if lora.expert in (None, role))


def refuse_for_one_expert(loras: Iterable[LoraFile], path: Path) -> None:
    """InputError for a LoRA that is for one of two experts where the model at `path` is one by itself."""
    for_one = next((lora for lora in loras if lora.expert is not None), None)
    if for_one is not None:
        raise InputError(
            f"`lora`: {for_one.path} is for the {for_one.expert}-noise expert, and {path} is one model by "
            "itself; leave the `high=` or `low=` out"
        )


def change_bytes(changes: Changes) -> int:
    """What they take on a GPU: themselves, and the sum with the largest weight in 16 bits while that is used."""
    every = [change for each in changes.values() for change in each]
    halves = sum(half.nbytes for change in every for half in (change.up, change.down) if half is not None)
    return halves + 2 * max((change.values for change in every), default=0)


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
        named = match[1] if match else ""
        for prefix in _PREFIXES:
            named = named.removeprefix(prefix)
        layer = layers.get(named.removeprefix("lora_unet_").replace(".", "_"))  # kohya's names have underscores
        if match is None or layer is None:
            strange.append(key)
            continue
        parts.setdefault(layer, {})[_ROLES.get(match[2], match[2])] = entry
    if strange or not parts:
        sample = ", ".join(strange[:3]) or "nothing"
        raise CheckpointError(
            f"{lora.path}: {len(strange)} of its tensors belong to no layer of the model ({sample}), "
            "expected a LoRA for LingBot-World or Wan 2.2 A14B in the official key names"
        )
    return {name: change for layer, found in parts.items() for name, change in _changes(lora, layer, found, shapes)}


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
    fits = (
        len(up.shape) > 1
        and math.prod(up.shape) == shape[0] * rank
        and math.prod(down.shape[1:]) == math.prod(shape[1:])
        and up.shape[0] == shape[0]
    )
    _need(fits, lora, weight, shape, (*up.shape[:1], *down.shape[1:]))
    alpha = found["alpha"].view().float().item() if "alpha" in found else rank
    yield weight, Change(lora.strength * alpha / rank, up, down)


def _need(fits: bool, lora: LoraFile, name: str, wanted: tuple | None, got: tuple) -> None:
    if not fits:
        raise CheckpointError(
            f"{lora.path}: its change of {name} is {list(got)}, the weight is "
            f"{list(wanted) if wanted else 'missing'}; it is a LoRA for another model"
        )
