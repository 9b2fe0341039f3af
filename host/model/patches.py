"""Checks of the additions that other nodes make to a MODEL: options, patches, wrappers and replaced objects."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import comfy.model_sampling
import folder_paths
import torch
from comfy.patcher_extension import WrappersMP

from ...errors import InputError
from ...loaders.release import role_of
from ..prompt.notice import running_node
from ..prompt.queue import loras_of, name_of

KEY = "lingbot_world"
"""The name under which this pack adds its wrapper to a MODEL."""
_OWN_PREFIX = "lingbot"
GUIDANCE = {
    "sampler_cfg_function",
    "sampler_pre_cfg_function",
    "sampler_post_cfg_function",
    "sampler_calc_cond_batch_function",
    "disable_cfg1_optimization",
}
_STEP_OPTIONS = {
    **dict.fromkeys(GUIDANCE, "guidance"),
    "denoise_mask_function": "Differential Diffusion",
    "context_handler": "context windows",
}
"""The model_options that change sampling steps, with names for the user. A causal model's video cannot use them."""
_RUN_OPTIONS = {
    "transformer_options",
    "to_load_options",
    "registered_hooks",
    "multigpu_clones",
    "multigpu_thread_pool",
    "multigpu_options",
}
OPTIONS = {*_STEP_OPTIONS, *_RUN_OPTIONS, "model_function_wrapper", "torch_compile_kwargs"}
"""The keys of model_options that ComfyUI's sampling uses."""
TRANSFORMER_OPTIONS = {
    "patches",
    "patches_replace",
    "wrappers",
    "callbacks",
    "optimized_attention_override",
    "rope_options",
    "easycache",
}
"""The keys of transformer_options that nodes set, and that LingBot-World or one of ComfyUI's wrappers reads."""
PATCHES = {"attn1_patch", "attn2_patch", "double_block"}
"""The keys of transformer_options["patches"] with functions that the model calls."""
REPLACED, BLOCK = "dit", "double_block"
"""The keys of a block's replacement: transformer_options["patches_replace"][REPLACED][(BLOCK, index)]."""
_OPTIONS_OF_OTHER_MODELS = {"chroma_radiance_options", "stg_self_attn_blocks", "a2v_cross_attn", "v2a_cross_attn"}
"""Keys of transformer_options that nodes for other models set during a run, and that LingBot-World ignores."""
_WINDOWS_WRAPPER = "ContextWindows_prepare_sampling"  # of every MODEL with context windows
WRAPPERS = {KEY, "easycache", "lazycache", "torch.compile", _WINDOWS_WRAPPER, "ContextWindows_sampler_sample", "None"}
"""The names of wrappers that cause no warning; "None" stands for all wrappers without a name."""
_STEP_WRAPPERS = (
    WrappersMP.OUTER_SAMPLE,
    WrappersMP.SAMPLER_SAMPLE,
    WrappersMP.PREDICT_NOISE,
    WrappersMP.CALC_COND_BATCH,
)
_KNOWN_REPLACEMENTS = {"model_sampling": "the shift of a Model Sampling node", "manual_cast_dtype": "a compute dtype"}
"""The objects of a MODEL that nodes replace and a rollout restores, each with a description for warnings."""
_KNOWN_INJECTIONS = {"bypass_lora"}


def check_sampling(patcher) -> None:
    """Raise InputError if the MODEL's `model_sampling` is not flow matching with timestep = 1000 * sigma."""
    sampling = patcher.get_model_object("model_sampling")
    half = torch.tensor([0.5])
    if not isinstance(sampling, comfy.model_sampling.CONST) or float(sampling.timestep(half)) != 500:
        node = maker_of(patcher, lambda each: each.object_patches.get("model_sampling") is sampling)
        raise InputError(
            f"{node} sets the timesteps of models of another kind: take it off (only Model Sampling SD3, which sets "
            "the shift, is for Wan and LingBot-World)"
        )


def uncalled_patches(options: Mapping[str, Any], blocks: int) -> list[str]:
    """Return the names of the patches in transformer_options that a model with `blocks` blocks never calls."""
    replaced = options.get("patches_replace", {})
    missing = set()
    for key in replaced.get(REPLACED, {}):  # such as ("double_block", 3)
        name = str(key[0] if isinstance(key, tuple) else key)
        if name != BLOCK or not key[1] < blocks:
            missing.add(f"{name} {key[1]}" if isinstance(key, tuple) and name == BLOCK else name)
    return sorted((options.get("patches", {}).keys() - PATCHES) | (replaced.keys() - {REPLACED}) | missing)


def no_effect_warning(options: Mapping[str, Any], exempt: set[str], blocks: int) -> str:
    """Return a warning about patches and keys in a step's transformer_options that the model does not use, or "".

    exempt: the keys present at the run's first step, most of which cause no warning.
    blocks: the model's number of transformer blocks.
    """
    later = (options.keys() - exempt - TRANSFORMER_OPTIONS) | (_OPTIONS_OF_OTHER_MODELS & options.keys())
    return _no_effect_text("asks for" if later else "patches", [*uncalled_patches(options, blocks), *sorted(later)])


def _no_effect_text(does: str, names: list[str]) -> str:
    if not names:
        return ""
    return (
        f"A node on the model {does} {', '.join(names)}, which neither LingBot-World nor ComfyUI's Wan has: it changes "
        "nothing."
    )


def uncalled_patch_warnings(patcher) -> Iterator[str]:
    """Yield a warning if the MODEL has patches that LingBot-World never calls, such as patches for other models."""
    blocks = len(patcher.model.diffusion_model.blocks)
    names = uncalled_patches(patcher.model_options.get("transformer_options", {}), blocks)
    if names:
        yield _no_effect_text("patches", names)


def unknown_addition_warnings(patcher) -> Iterator[str]:
    """Yield a warning if the MODEL has options, wrappers, replaced objects or injections unknown to this pack."""
    transformer = patcher.model_options.get("transformer_options", {})
    names = (patcher.model_options.keys() - OPTIONS) | (_wrappers(patcher) - WRAPPERS)
    names |= {name for name in transformer.keys() - TRANSFORMER_OPTIONS if not name.startswith(_OWN_PREFIX)}
    names |= (patcher.object_patches.keys() - _KNOWN_REPLACEMENTS.keys()) | patcher.weight_wrapper_patches.keys()
    names |= patcher.injections.keys() - _KNOWN_INJECTIONS
    if names:
        yield (
            f"A node has put {', '.join(sorted(names))} on the model, which LingBot-World does not know: it may "
            "change nothing."
        )


def one_expert_warning(high, low) -> str:
    """Return a warning that names the changes by other nodes, such as patches, that only one of the two experts' MODELs
    has. Return "" if there are none."""
    first, second = additions(high), additions(low)
    one = [f"{name} (high noise)" for name in sorted(first - second)]
    one += [f"{name} (low noise)" for name in sorted(second - first)]
    if not one:
        return ""
    names = ", ".join(one)
    return f"On one expert only: {names}. Put the same node after the other expert, unless you want the difference."


def additions(patcher, with_lazycache: bool = False) -> set[str]:
    """Return the names of other nodes' changes to a MODEL, except shift and dtype. LazyCache is included only if
    `with_lazycache`."""
    options = patcher.model_options
    transformer = options.get("transformer_options", {})
    names = {_STEP_OPTIONS.get(name, name) for name in options.keys() - _RUN_OPTIONS - {"disable_cfg1_optimization"}}
    patches = transformer.get("patches", {}).keys() | transformer.get("patches_replace", {}).keys()
    names |= patches & (PATCHES | {REPLACED})
    names |= transformer.keys() & {"optimized_attention_override", "rope_options"}
    return (
        names
        | (_wrappers(patcher) - {KEY, _WINDOWS_WRAPPER, "" if with_lazycache else "lazycache"})
        | (patcher.object_patches.keys() - _KNOWN_REPLACEMENTS.keys())
    )


def _wrappers(patcher) -> set[str]:
    return {str(name) for _, _, name in _all_wrappers(patcher)}


def _all_wrappers(patcher) -> list[tuple[dict, str, str | None]]:
    """Return (dict, kind, name) for each list of wrappers on a MODEL, which is `dict[name]`.

    kind: ComfyUI's wrapper type, such as "outer_sample".
    name: the dict key under which a node added the wrappers, which may be None.
    """
    places = (patcher.wrappers, patcher.model_options.get("transformer_options", {}).get("wrappers", {}))
    return [(place[kind], kind, name) for place in places for kind in place for name in place[kind]]


def lineage(patcher) -> Iterator[tuple[str | None, Any]]:
    """Yield (node id or None, MODEL) for a MODEL, then for each MODEL that it was cloned from."""
    while patcher is not None:
        yield getattr(patcher, "made_by", None), patcher
        patcher = patcher.parent


def maker_of(patcher, has: Callable[[Any], bool]) -> str:
    """Return the name of the node that made the earliest MODEL for which `has(MODEL)` is true, among `patcher` and the
    MODELs it was cloned from. If the node is unknown, return "a node on the model"."""
    nodes = [node for node, each in lineage(patcher) if has(each)]
    return name_of(nodes[-1]) if nodes and nodes[-1] is not None else "a node on the model"


def useless_node_warnings(patcher) -> Iterator[str]:
    """Yield a warning for each node between loader and sampler that left the MODEL unchanged."""
    latest = [next(group) for _, group in groupby(lineage(patcher), itemgetter(0))]  # each node's last clone
    for (node, after), (_, before) in pairwise(latest):
        if node not in (None, running_node()) and _is_unchanged(before, after):
            yield f"{name_of(node)} has left the model as it was: it changes nothing."


def swapped_lora_warnings(patcher) -> Iterator[str]:
    """Yield a warning for each LoRA of an expert whose file name is for the other expert, such as "low_noise" on the
    high-noise expert."""
    role = getattr(patcher.model, "role", None)
    for name in (name for node, _ in lineage(patcher) if role for name in loras_of(node)):
        own = role_of(Path(folder_paths.get_full_path("loras", name) or name))
        if own not in (None, role):
            yield (
                f"{name} is the {own}-noise expert's LoRA by its name, and hangs on the {role}-noise expert: "
                "connect it to the other one."
            )


def _is_unchanged(before, after) -> bool:
    names = (
        "patches_uuid",
        "object_patches",
        "weight_wrapper_patches",
        "model_options",
        "wrappers",
        "callbacks",
        "injections",
        "attachments",
        "load_device",
    )
    try:
        counts = [len(each.additional_models) for each in (before, after)]
        return counts[0] == counts[1] and all(getattr(before, name) == getattr(after, name) for name in names)
    except RuntimeError:  # comparing different tensors has no single truth value
        return False


def without_step_additions(patcher) -> tuple[Any, list[str]]:
    """Remove other nodes' changes to sampling steps, such as guidance, which a causal model's video cannot use. Return
    a changed clone and one note for the user, or the MODEL itself and no note."""
    options, notes = patcher.model_options, []
    found = dict.fromkeys(words for name, words in _STEP_OPTIONS.items() if name in options)
    steps = {name for _, kind, name in _all_wrappers(patcher) if kind in _STEP_WRAPPERS} - {KEY}
    found |= dict.fromkeys(
        "a wrapper of the steps" if name is None else str(name)
        for name in sorted(steps, key=str)
        if not str(name).startswith("ContextWindows")
    )
    found |= dict.fromkeys(_KNOWN_REPLACEMENTS[name] for name in _KNOWN_REPLACEMENTS if name in patcher.object_patches)
    if found:
        notes.append(
            f"A rollout goes without {', '.join(found)} on the model: it has steps, guidance and a window of its own."
        )
        patcher = patcher.clone()
        _remove_step_additions(patcher, steps)
    return patcher, notes


def _remove_step_additions(patcher, wrappers: set[str | None]) -> None:
    for name in _STEP_OPTIONS:
        patcher.model_options.pop(name, None)
    patcher.model_options.get("transformer_options", {}).pop("easycache", None)
    for name in _KNOWN_REPLACEMENTS:
        patcher.object_patches.pop(name, None)
    for place, _, name in _all_wrappers(patcher):
        if name in wrappers:
            del place[name]
