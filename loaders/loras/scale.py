"""The scale that a LoRA states in its header, or in a JSON file next to it."""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import CheckpointError
from ...weights.files import WEIGHT_SUFFIXES, read_json

SIDE_FILE = "adapter_config.json"
OTHER_SIDES = "config.json", "lora_config.json"
PACKED = "lora_adapter_metadata", "adapter_config", "lora_config", "peft_config"
"""The metadata keys of LoRA files that may hold a JSON object with PEFT's fields."""
ALPHA, RANK, SCALE, BY_ROOT = "lora_alpha", "r", "scale", "use_rslora"
TRAINER = "ss_network_module"
UNKNOWN = ("None", "Dynamic")
"""The texts that kohya's trainer writes into a header in place of an unknown number."""
PATTERNS = ("alpha_pattern", "rank_pattern")
REFUSED = (
    *("use_dora", "fan_in_fan_out", "use_qalora", "layer_replication", "trainable_token_indices", "use_bdlora"),
    *("alora_invocation_tokens", "arrow_config"),
)
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Prefixes of PEFT's `init_lora_weights` values that change the base model's weights. These LoRAs are refused."""
_PEFT_FIELDS = {
    **{"alpha": ALPHA, "rank": RANK, "r": RANK, "dim": RANK, "scale": SCALE, "scaling": SCALE},
    **dict.fromkeys(("rslora", "rs_lora", "rank_stabilized"), BY_ROOT),
}
"""A map from the last word of a LoRA tool's metadata key to PEFT's field of the same meaning. For example, `alpha` in
`ss_network_alpha` means `lora_alpha`."""
_MODEL = r"(?:(?:transformer|unet|diffusion_model|dit|model)\.)?"
_OWNER = r"(?:(?:ss|lora|network|adapter|peft|use)_)"
_PART = re.compile(rf"{_MODEL}(?:({_OWNER}*)(alpha|rank|r|scale|scaling|rs_?lora|rank_stabilized)|({_OWNER}+)(dim))$")
_OWN = re.compile(r"(?:lora|network)_(?:alpha|rank|dim)$")
_OBJECT = re.compile(r"(?:config|metadata)$|.*(?:lora|adapter|network|peft)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_KNOWN = {ALPHA, RANK, SCALE, BY_ROOT, *PATTERNS, *REFUSED, "init_lora_weights", "peft_type"}
_QUANTIFIERS = re.compile(r"[*+?{]")


class ScaleError(CheckpointError):
    """The error for a contradictory or unreadable scale."""


class StatedScale(NamedTuple):
    """What a LoRA file states about its scale. With an alpha, the scale is alpha / rank, or alpha / sqrt(rank) if
    `by_root`. Without alpha, the scale is `scale`.

    where: the file's name, for error messages.
    alphas, ranks: values that replace `alpha` and `rank` for some layers, keyed by a regular expression for layers.
    """

    where: str
    alpha: float | None = None
    rank: float | None = None
    alphas: Mapping[str, float] = {}
    ranks: Mapping[str, float] = {}
    by_root: bool = False
    scale: float | None = None

    def scale_for(self, layer: str, rank: int) -> float:
        """Return a layer's scale, or 1 if the file states none. `rank` is the rank of the layer's matrices. Raise
        ScaleError if the file states another rank, or a scale that contradicts its alpha."""
        alpha = _matching(self.alphas, layer, self.alpha)
        stated = _matching(self.ranks, layer, self.rank)
        if stated is not None and stated != rank:
            raise ScaleError(
                f"{self.where}: states rank {stated:g} for {layer}, whose tensors have rank {rank}, so the scale is "
                "unknown; the file does not belong to the LoRA, or the LoRA was resized"
            )
        if alpha is None:
            return 1.0 if self.scale is None else self.scale
        scale = alpha / (math.sqrt(rank) if self.by_root else rank)
        if self.scale is not None and not math.isclose(scale, self.scale, rel_tol=0.01):
            raise ScaleError(
                f"{self.where}: states scale {self.scale:g}, and alpha {alpha:g} of rank {rank}, which is scale "
                f"{scale:g} for {layer}; remove the wrong one"
            )
        return scale


def find_scale(file: Path, header: Mapping[str, Any], keys: Collection[str] = ()) -> StatedScale:
    """Return the scale stated in a LoRA's header, or else in a JSON file in its folder. `keys` are the LoRA's tensor
    names, which show whether its header still holds. Raise CheckpointError for adapters that are not plain LoRAs."""
    peft = any(".lora_A." in key for key in keys)
    if TRAINER in header and peft and not any(key.endswith(".alpha") for key in keys):
        # A LoRA of kohya's trainers that was converted to PEFT's names: the converters multiply the matrices by the
        # scale, drop the alpha tensors, but keep the trainer's header.
        return StatedScale(str(file))
    config = _config_of(_values(header, f"{file} (header)"), f"{file} (header)")
    if config.keys() & {ALPHA, SCALE, BY_ROOT, *PATTERNS, *REFUSED}:
        return _scale_of(config, f"{file} (header)")
    weights = [each for each in file.parent.iterdir() if each.suffix in WEIGHT_SUFFIXES]
    alone = file.stem.startswith("adapter_model") or len(weights) == 1  # PEFT's own name, or the only weight file
    own = f"{file.stem}.json", f"{file.stem}_config.json"
    for side in map(file.with_name, (SIDE_FILE, *OTHER_SIDES, *own)):
        stated: dict[str, Any] = {}
        with nullcontext() if side.name == SIDE_FILE else suppress(CheckpointError):  # the others may be anything
            stated = read_json(side, optional=True) if alone or side.name in own else {}
        values = _values(stated, str(side))
        if stated and (side.name == SIDE_FILE or _is_of_a_lora(values)):
            return _scale_of(_config_of(values, str(side)), str(side))
    return StatedScale(str(file))


class _Value(NamedTuple):
    """A value from a header or JSON file that may describe a LoRA.

    name: PEFT's field name, such as `lora_alpha`, or `scale`.
    of_lora: whether the key or the enclosing object shows that the value describes a LoRA; False for a bare `alpha`.
    """

    name: str
    value: Any
    of_lora: bool


def _values(stated: Mapping[str, Any], where: str) -> list[_Value]:
    """Return the values that concern a LoRA's kind or scale, also from nested objects. `stated` is a header or a JSON
    file's content, and `where` names the file in errors."""
    objects = {key: _parse(value) for key, value in stated.items() if _OBJECT.match(key)}
    if broken := next((key for key in PACKED if isinstance(objects.get(key), str) and objects[key]), None):
        raise CheckpointError(f"{where}: {broken} is not JSON: {objects[broken]!r:.40}")
    pairs = [(key, value, False) for key, value in stated.items()]
    pairs += [(*pair, True) for each in objects.values() if isinstance(each, Mapping) for pair in each.items()]
    others = [_parse(value) for key, value in stated.items() if key not in objects]
    pairs += [
        pair + (True,) for each in others if isinstance(each, Mapping) for pair in each.items() if _OWN.match(pair[0])
    ]
    found = []
    for key, value, packed in pairs:
        match = _PART.match(_HUMP.sub("_", key).lower())
        name = _PEFT_FIELDS[match[2] or match[4]] if match else re.sub(_MODEL, "", key)
        if name in _KNOWN and (read := _parse(value)) is not None:
            found.append(_Value(name, read, packed or bool(match and (match[1] or match[3]))))
    return found


def _config_of(values: Sequence[_Value], where: str) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, value, _ in values:
        if config.setdefault(name, value) != value:
            raise ScaleError(f"{where}: {name} is both {config[name]!r:.40} and {value!r:.40}; remove one")
    return config


def _is_of_a_lora(values: Sequence[_Value]) -> bool:
    names = {each.name for each in values}
    return {ALPHA, RANK} <= names or any(each.of_lora and each.name in (ALPHA, SCALE) for each in values)


def _parse(value: Any) -> Any:
    """Decode a JSON text. Return None for a placeholder such as "None". Return other values unchanged."""
    try:
        return json.loads(value.lower() if value in ("True", "False") else value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None if value in UNKNOWN else value


def _scale_of(config: Mapping[str, Any], where: str) -> StatedScale:
    kind, start = config.get("peft_type"), config.get("init_lora_weights")
    if kind is not None and str(kind).upper() != "LORA":
        raise CheckpointError(f"{where}: peft_type is {kind!r:.40}, expected LORA; this adapter cannot be applied")
    if wrong := next((key for key in REFUSED if config.get(key)), None):
        raise CheckpointError(f"{where}: {wrong} is {config[wrong]!r:.40}, and a plain LoRA is expected")
    if isinstance(start, str) and start.lower().startswith(BASE_CHANGING_INITS):
        raise CheckpointError(
            f"{where}: init_lora_weights is {start!r:.40}, which changes the model's own weights; convert it to a "
            "plain LoRA with PEFT's path_initial_model_for_weight_conversion"
        )
    alpha, rank, scale = (
        None if config.get(key) is None else _number(config[key], f"{where}: {key}") for key in (ALPHA, RANK, SCALE)
    )
    alphas, ranks = (_pattern(config.get(key), f"{where}: {key}") for key in PATTERNS)
    if rank is not None and rank < 1:
        raise ScaleError(f"{where}: a rank of {rank:g}, expected 1 or more")
    return StatedScale(where, alpha, rank, alphas, ranks, bool(config.get(BY_ROOT)), scale)


def _number(value: Any, where: str) -> float:
    with suppress(OverflowError):  # of an integer of hundreds of digits
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise ScaleError(f"{where} is {value!r:.40}, expected a number")


def _pattern(value: Any, where: str) -> dict[str, float]:
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise ScaleError(f"{where} is {value!r:.40}, expected an object of layers and numbers")
    for key in value:
        if len(key) > 200 or len(_QUANTIFIERS.findall(key)) > 3 or re.search(r"\)[*+?{]", key):
            raise ScaleError(f"{where}: {key!r:.60} is a pattern that cannot be followed; name the layers")
        try:
            re.compile(key)
        except re.error as error:
            raise ScaleError(f"{where}: {key!r:.60} is no pattern ({error})") from error
    return {key: _number(each, f"{where}: {key}") for key, each in value.items()}


def _matching(values: Mapping[str, float], layer: str, default: float | None) -> float | None:
    """Return the value of the first pattern that matches the end of the layer's name, else `default`."""
    for key, value in values.items():
        if layer == key or layer.endswith(f".{key}") or re.match(rf"(.*\.)?({key})$", layer):
            return value
    return default
