"""Corrections of ComfyUI's LoRA patches: misfits are removed, tensors that ComfyUI's loader ignores are added."""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import folder_paths
import torch
from comfy.weight_adapter import LoRAAdapter

from ...errors import CheckpointError, InputError
from ...loaders.lora import LoraChange, read_loras
from ...loaders.loras.scale import ScaleError
from ...options import LoraFile
from ...weights.files import read_tensors
from ..prompt.notice import running_node, show_warning
from ..prompt.queue import loras_of

PREFIX = "diffusion_model."
SAME_SCALE = 1e-6
NAMED = 3
WHICH_LORA = "use one that was made for the 14B models of Wan 2.1 or 2.2"
AS_LORA = "model_as_lora"
"""The first element, or kind, of a ComfyUI patch that applies another model's weights as a LoRA."""
SEVERAL = (
    "This node loads several LoRAs. Scales in their headers, and tensors that ComfyUI's loader leaves out, are applied "
    "only to LoRAs that have a node of their own."
)


def add_ignored_tensors(patches: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return ComfyUI's patches of a LoRA, with the tensors and scales added that ComfyUI's loader ignores. They are
    read from the LoRA file that the running node loads. Without a single readable file, return `patches` unchanged.

    shapes: the shape of each model parameter, by official name.
    """
    paths = [path for name in loras_of(running_node()) if (path := folder_paths.get_full_path("loras", name))]
    files = [*map(Path, dict.fromkeys(paths))]
    if not files:
        return patches
    if len(files) == 1:
        show_warning("")
    elif len(files := [file for file in files if _are_from(patches, file)]) != 1:
        show_warning(SEVERAL)
        return patches
    (file,) = files
    try:
        changes = read_loras([LoraFile(file, 1.0)], shapes)
    except CheckpointError as error:
        if isinstance(error, ScaleError):
            show_warning(
                f"{file.name}: ComfyUI's loader does not read the scale, which may be wrong in the video. {error}"
            )
        else:
            _name_left_out(file, patches, error)
        return patches
    added = {
        f"{PREFIX}{name}": _patch(each)
        for name, each in changes.items()
        if f"{PREFIX}{name}" not in patches or len(each) > 1
    }
    rescaled = {
        key: _patch(changes[key.removeprefix(PREFIX)])
        for key, patch in patches.items()
        if _scaled_otherwise(patch, changes.get(key.removeprefix(PREFIX), ()))
    }
    if added:
        names = ", ".join(key.removeprefix(PREFIX) for key in list(added)[:NAMED])
        show_warning(
            f"{file.name}: ComfyUI's loader leaves out {len(added)} of {len(changes)} changes ({names}), which are "
            "applied here."
        )
    if rescaled:
        scale = changes[next(iter(rescaled)).removeprefix(PREFIX)][-1].scale
        show_warning(
            f"{file.name}: the scale {scale:g} stored with its tensors is applied to {len(rescaled)} weights; "
            "ComfyUI's loader takes 1."
        )
    return patches | added | rescaled


def _are_from(patches: Mapping[str, Any], file: Path) -> bool:
    """Whether `patches` were loaded from `file`. Only the first LoRA patch is compared: one of its two low-rank
    matrices must equal the file's tensor of the same key."""
    patch = next((each for each in patches.values() if isinstance(each, LoRAAdapter)), None)
    if patch is None:
        return False
    with suppress(CheckpointError):
        entries = read_tensors(file)
        found = [entries[key].view() for key in patch.loaded_keys & entries.keys()]
        return any(each.shape == half.shape and torch.equal(each, half) for each in found for half in patch.weights[:2])
    return False


def _patch(changes: Sequence[LoraChange]) -> Any:
    if len(changes) > 1:  # a matrix, and halves; ComfyUI has one patch of a LoRA for each parameter
        whole = torch.zeros(changes[0].up.shape)
        for each in changes:
            whole = each.apply_to(whole)
        return ("diff", (whole,))
    (change,) = changes
    up = change.up.view()
    if change.down is None:
        return ("diff", (up if change.scale == 1 else change.scale * up.float(),))
    down = change.down.view()
    return LoRAAdapter(set(), (up, down, change.scale * down.shape[0], None, None, None))


def _scaled_otherwise(patch: Any, changes: Collection[LoraChange]) -> bool:
    if not isinstance(patch, LoRAAdapter) or len(changes) != 1:
        return False
    (change,) = changes
    alpha, rank = patch.weights[2], patch.weights[1].shape[0]
    return change.down is not None and abs((1.0 if alpha is None else alpha / rank) - change.scale) > SAME_SCALE


def _name_left_out(file: Path, patches: Mapping[str, Any], error: CheckpointError) -> None:
    try:
        keys = read_tensors(file).keys()
    except CheckpointError as unread:
        show_warning(str(unread))
        return
    adapters = [patch for patch in patches.values() if hasattr(patch, "loaded_keys")]
    read = {_spelling(key) for patch in adapters for key in patch.loaded_keys}
    left = [key for key in keys if _spelling(key) not in read]
    if left and adapters:
        sample = ", ".join(left[:NAMED])
        show_warning(f"{file.name}: {len(left)} of its {len(keys)} tensors are left out ({sample}). {error}")


def _spelling(key: str) -> str:
    return key.replace("lora_unet__", "lora_unet_")


def fitting_patches(patches: dict, model: torch.nn.Module, strength: float) -> dict:
    """Return a LoRA's patches, without those of another shape than the weight's. Raise InputError if most differ, or if
    `patches` is empty and `strength` is not 0."""
    if not patches and strength:
        raise InputError(f"none of this LoRA's keys is one of a LingBot-World expert; {WHICH_LORA}")
    weights = dict(model.named_parameters())
    ours, misfits = patches.keys() & weights.keys(), []
    for key in sorted(ours):
        found, expected = _patch_shape(patches[key]), weights[key].shape
        if found not in (None, expected, (expected[0], expected[1:].numel())):
            misfits.append((key, list(found), list(expected)))
    if not misfits:
        return patches
    key, found, expected = misfits[0]
    example = f"{key.removeprefix(PREFIX)} is {found} in the LoRA and {expected} in the expert"
    if 2 * len(misfits) > len(ours):
        raise InputError(f"this LoRA was made for a model of another size: {example}; {WHICH_LORA}")
    logging.warning("%d of a LoRA's %d weights do not fit and are left out: %s", len(misfits), len(ours), example)
    left_out = {key for key, *_ in misfits}
    return {key: patch for key, patch in patches.items() if key not in left_out}


def _patch_shape(patch) -> tuple[int, ...] | None:
    if isinstance(patch, LoRAAdapter):
        up, down, _alpha, middle, _dora_scale, reshape = patch.weights
        return None if middle is not None or reshape is not None else (up.shape[0], down.shape[1:].numel())
    is_diff = is_kind(patch, "diff", AS_LORA) and len(patch[1]) == 1
    return tuple(patch[1][0].shape) if is_diff else None


def is_kind(patch, *kinds: str) -> bool:
    return isinstance(patch, tuple) and isinstance(patch[0], str) and patch[0] in kinds


MIXTURE = (
    "A causal model (LingBot-World Fast or 2.0) and an expert of the base model are merged here, and the result is "
    "neither; merge models of one kind."
)


class _WeightToMerge(list):
    """A parameter's list for a merge into another MODEL: the weight, then its patches. `causal`: whether they come from
    a causal model."""

    causal = False


def weights_to_merge(patches: dict[str, list], causal: bool) -> dict[str, list]:
    """Return a copy of `patches`, a MODEL's weights and their patches for a merge into another MODEL. Each list gets
    the attribute `causal`: whether the MODEL is a causal model."""
    found = {key: _WeightToMerge(each) for key, each in patches.items()}
    for each in found.values():
        each.causal = causal
    return found


def is_mixture(patches: dict, causal: bool) -> bool:
    """Whether `patches` contain another MODEL's weights, and would mix a causal model and an expert. LoRA patches alone
    do not. `causal`: whether the MODEL that receives the patches is causal."""
    return any(isinstance(each, _WeightToMerge) and each.causal != causal for each in patches.values())
