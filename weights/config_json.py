"""A model's config.json: reading of the numbers that no tensor shows, and checks of the other fields."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..errors import CheckpointError
from ..model.config import ModelConfig

FIXED_FIELDS = {
    "patch_size": [1, 2, 2],
    "qk_norm": True,
    "cross_attn_norm": True,
    "window_size": [-1, -1],
    "rope_theta": 10000,
    "rope_scaling": None,
}
"""The fields for which the model supports one value only."""
DIFFUSERS = {"qk_norm": "rms_norm_across_heads"}
CONTROL_TYPES = {6: "cam", 7: "act"}
ADVICE = "put the right config.json next to it, or none"


def wan_fields(stated: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json if they describe a Wan or LingBot model, else {}."""
    kind = str(stated.get("_class_name") or "WanModel").lower()
    return stated if "architectures" not in stated and ("wan" in kind or "lingbot" in kind) else {}


def stated_numbers(name: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return num_heads, text_len and eps from a config.json, if stated. Raise CheckpointError for impossible ones."""
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "num_heads": (lambda value: _is_whole(value) and value <= 1024, "a whole number from 1 to 1024"),
        "text_len": (lambda value: _is_whole(value) and value <= 4096, "a whole number from 1 to 4096"),
        "eps": (lambda value: isinstance(value, int | float) and 0 < value < 0.1, "a number between 0 and 0.1"),
    }
    known = {key: stated[key] for key in checks if stated.get(key) is not None}
    for key, value in known.items():
        fits, expected = checks[key]
        if not fits(value):
            raise CheckpointError(f"{name}: its config.json has {key} {value!r:.40}, expected {expected}; {ADVICE}")
    return known


def check_config(name: str, config: ModelConfig, stated: Mapping[str, Any]) -> None:
    """Raise CheckpointError if official keys of a config.json contradict `config`, which comes from the tensors."""
    found = asdict(config)
    shared = sorted(found.keys() & stated.keys() - {"control", "causal"})
    differing = [
        f"{key} {stated[key]} (tensors: {found[key]})" for key in shared if stated[key] not in (None, found[key])
    ]
    differing += [
        f"{key} {stated[key]!r:.40} (expected {value})"
        for key, value in FIXED_FIELDS.items()
        if stated.get(key) not in (None, value, DIFFUSERS.get(key))
    ]
    kind = CONTROL_TYPES.get(config.control or 0)
    if stated.get("control_type") in CONTROL_TYPES.values() and stated["control_type"] != kind:
        differing.append(f"control_type {stated['control_type']} (tensors: {kind or 'no camera layers'})")
    if differing:
        raise CheckpointError(f"{name}: its config.json belongs to another model: {', '.join(differing)}; {ADVICE}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
