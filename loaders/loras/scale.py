"""The scale that a LoRA file states outside of its tensors: in its header, or in a JSON file next to it."""

import json
import math
import re
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import CheckpointError
from ...fields import Field
from ...weights.files import WEIGHT_SUFFIXES, read_json

SIDE_FILE = "adapter_config.json"
PACKED = "lora_adapter_metadata", "adapter_config", "lora_config", "peft_config"
"""The header keys under which a JSON object with PEFT's fields may be. diffusers writes the first one."""
ALPHA = ("lora_alpha", "network_alpha", "ss_network_alpha", "alpha")
RANK = ("r", "lora_rank", "rank", "ss_network_dim")
TRAINER = "ss_network_module"
UNKNOWN = ("None", "Dynamic")
"""The values in kohya's header that are not numbers. A resized LoRA has "Dynamic"."""
PATTERNS = ("alpha_pattern", "rank_pattern")
REFUSED = (
    *("use_dora", "fan_in_fan_out", "use_qalora", "layer_replication", "trainable_token_indices", "use_bdlora"),
    *("alora_invocation_tokens", "arrow_config"),
)
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""The initializations of a LoRA that also change the weights of the base model; such LoRAs are refused."""
FIELDS = (
    Field(ALPHA, "applied", "alpha of the scale alpha / rank, for layers without a tensor for it."),
    Field(RANK, "applied", "The rank, which must equal the tensors' rank."),
    Field(PATTERNS, "applied", "Other values for some layers, by the end of their names or a plain pattern."),
    Field(
        (TRAINER,),
        "applied",
        "With PEFT's names and no alpha tensors the file was converted: its matrices already include the scale.",
    ),
    Field(("use_rslora",), "applied", "The scale is alpha / sqrt(rank)."),
    Field(("lora_bias",), "applied", "Biases of the up matrices, with the same scale."),
    Field((*REFUSED, "peft_type", "init_lora_weights"), "refused", f"All but plain LoRAs; {', '.join(CHANGED_BASE)}."),
    Field(("modules_to_save", "bias"), "refused", "Whole weights and biases, if the file has them."),
    Field(PACKED, "applied", "All of the fields above as JSON in the header; diffusers writes the first key."),
    Field(("NAME.json", "NAME_config.json", "config.json"), "applied", "With lora_alpha: as adapter_config.json."),
)
_PREFIXES = ("transformer.", "unet.", "diffusion_model.")
_QUANTIFIERS = re.compile(r"[*+?{]")


class StatedScale(NamedTuple):
    """The scale that a file states: `alpha` and `rank`, with exceptions by layer in `alphas` and `ranks`. If `by_root`,
    alpha is divided by the square root of the rank. `where` names the file in errors."""

    where: str
    alpha: float | None = None
    rank: float | None = None
    alphas: Mapping[str, float] = {}
    ranks: Mapping[str, float] = {}
    by_root: bool = False

    def of(self, layer: str, rank: int) -> float:
        """Return the scale of a layer. `layer` is the layer's name in the file, and `rank` the rank of its tensors.

        Raises CheckpointError if the file states a different rank.
        """
        alpha = _matching(self.alphas, layer, self.alpha)
        stated = _matching(self.ranks, layer, self.rank)
        if stated is not None and stated != rank:
            raise CheckpointError(
                f"{self.where}: states rank {stated:g} for {layer}, whose tensors have rank {rank}, so the scale is "
                "unknown; the file does not belong to the LoRA, or the LoRA was resized"
            )
        if alpha is None:
            return 1.0
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def stated_scale(file: Path, header: Mapping[str, Any], keys: Collection[str] = ()) -> StatedScale:
    """Return the scale that a LoRA's safetensors `header` states, or else a JSON file in the folder of the LoRA's
    `file`.

    For FILE.safetensors the JSON file is adapter_config.json, config.json, FILE.json or FILE_config.json; all but the
    first must have a lora_alpha. The first two are read only if `file` is named adapter_model or is the only weight
    file in its folder. If no scale is stated, the result has no alpha.

    `keys` are the names of the LoRA's tensors. Raises CheckpointError for values that are not numbers, and for adapters
    that are not plain LoRAs.
    """
    peft = any(".lora_A." in key for key in keys)
    if TRAINER in header and peft and not any(key.endswith(".alpha") for key in keys):
        # A LoRA of kohya's trainers that was converted to PEFT's names: the converters multiply the matrices by the
        # scale, drop the alpha tensors, but keep the trainer's header.
        return StatedScale(str(file))
    config = _header_config(file, header)
    if config:
        return _scale_of(config, f"{file} (header)")
    weights = [each for each in file.parent.iterdir() if each.suffix in WEIGHT_SUFFIXES]
    alone = file.stem.startswith("adapter_model") or len(weights) == 1  # PEFT's own name, or the only weight file
    own = f"{file.stem}.json", f"{file.stem}_config.json"
    for side in map(file.with_name, (SIDE_FILE, "config.json", *own)):
        stated: dict[str, Any] = {}
        with nullcontext() if side.name == SIDE_FILE else suppress(CheckpointError):  # the others may be anything
            stated = read_json(side, optional=True) if alone or side.name in own else {}
        if ALPHA[0] in stated or (stated and side.name == SIDE_FILE):
            return _scale_of(stated, str(side))
    return StatedScale(str(file))


def _header_config(file: Path, header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a header under PEFT's names; an empty dict if the header states no scale."""
    name = next((each for each in PACKED if header.get(each)), "")
    try:
        packed = json.loads(header.get(name) or "{}")
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: {name} in the header is not JSON ({error})") from error
    flat = {**header, **(packed if isinstance(packed, dict) else {})}
    known = {*ALPHA, *RANK, *PATTERNS, *REFUSED, "use_rslora", "init_lora_weights", "peft_type"}
    config: dict[str, Any] = {}
    for key, value in flat.items():
        name = next((key.removeprefix(prefix) for prefix in _PREFIXES if key.startswith(prefix)), key)
        if name in known:
            config[name] = _parse(value)
    return config if config.keys() & {*ALPHA, *PATTERNS, *REFUSED, "use_rslora"} else {}


def _parse(value: Any) -> Any:
    """Return the value that a string in a header stands for: a number, a bool, a JSON object, or the string itself."""
    try:
        return json.loads(value.lower() if value in ("True", "False") else value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None if value in UNKNOWN else value


def _scale_of(config: Mapping[str, Any], where: str) -> StatedScale:
    kind, start = config.get("peft_type"), config.get("init_lora_weights")
    if kind not in (None, "LORA"):
        raise CheckpointError(f"{where}: peft_type is {kind!r:.40}, expected LORA; this adapter cannot be applied")
    if wrong := next((key for key in REFUSED if config.get(key)), None):
        raise CheckpointError(f"{where}: {wrong} is {config[wrong]!r:.40}, and a plain LoRA is expected")
    if isinstance(start, str) and start.lower().startswith(CHANGED_BASE):
        raise CheckpointError(
            f"{where}: init_lora_weights is {start!r:.40}, which changes the model's own weights; convert it to a "
            "plain LoRA with PEFT's path_initial_model_for_weight_conversion"
        )
    alpha, rank = (_first(config, names, where) for names in (ALPHA, RANK))
    alphas, ranks = (_pattern(config.get(key), f"{where}: {key}") for key in PATTERNS)
    if rank is not None and rank < 1:
        raise CheckpointError(f"{where}: a rank of {rank:g}, expected 1 or more")
    return StatedScale(where, alpha, rank, alphas, ranks, bool(config.get("use_rslora")))


def _first(config: Mapping[str, Any], names: tuple[str, ...], where: str) -> float | None:
    key = next((name for name in names if config.get(name) is not None), None)
    return None if key is None else _number(config[key], f"{where}: {key}")


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CheckpointError(f"{where} is {value!r:.40}, expected a number")
    return float(value)


def _pattern(value: Any, where: str) -> dict[str, float]:
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{where} is {value!r:.40}, expected an object of layers and numbers")
    for key in value:
        if len(key) > 200 or len(_QUANTIFIERS.findall(key)) > 3 or re.search(r"\)[*+?{]", key):
            raise CheckpointError(f"{where}: {key!r:.60} is a pattern that cannot be followed; name the layers")
        try:
            re.compile(key)
        except re.error as error:
            raise CheckpointError(f"{where}: {key!r:.60} is no pattern ({error})") from error
    return {key: _number(each, f"{where}: {key}") for key, each in value.items()}


def _matching(values: Mapping[str, float], layer: str, default: float | None) -> float | None:
    """Return the value of the first pattern in `values` that matches the end of a layer's name, as in PEFT; else
    `default`."""
    for key, value in values.items():
        if layer == key or layer.endswith(f".{key}") or re.match(rf"(.*\.)?({key})$", layer):
            return value
    return default
