"""Detection of a model's release and of experts' roles from config.json, sizes and names."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from ..errors import CheckpointError, InputError
from ..model.config import ModelConfig
from ..options import RELEASES, Release
from . import diffusers_names

CAUSAL_CLASS, GUIDED_CLASS = "WanModelFast", "WanModelCausal"
"""Values of `_class_name` in Wan's config.json: CAUSAL_CLASS for few-step causal models, GUIDED_CLASS for
causal-pretrain, which uses classifier-free guidance."""
SMALL = 30, 1536
"""The number of layers and the width of LingBot-World 2.0's 1.3B model."""

_NAMED = {
    "v2-1.3b": r"1\.3b|1p3b",
    "v2-pretrain": r"causal[-_]pretrain|transformer_causal",
    "v2": r"v2|causal[-_]fast",
    "v1": r"fast",
}
"""The patterns that show a release in a name, by key of RELEASES. The first match counts."""
Role = Literal["high", "low"]
_CAUSAL = re.compile(r"1\.3b|1p3b|causal[-_]fast|causal[-_]pretrain|transformer_causal|lingbot[-_]world[-_]fast")
_HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOISE = re.compile(r"(?<![a-z])(?:(high|low|hi|lo)[ _.-]?noise|noise[ _.-]?(high|low)(?![a-z]))")
_BARE = re.compile(r"(?<![a-z])(high|low)(?![a-z])")
_HUB = "models--"
"""The prefix of a repository's folder in Hugging Face's cache."""
_WORD = re.compile(r"[\w./-]+")
_NODE_INPUTS = "high_noise", "low_noise"
"""Input names of this project's nodes. A workflow saved in a weight file's header contains them, and they are not
experts' names. A search for experts' names ignores them."""
_BIDIRECTIONAL = re.compile(r"bidirectional|[-_]bid(?![a-z])")


def names_of(path: Path, source: str = "") -> tuple[str, ...]:
    """Return the names of a model's file, folders and Hugging Face repository that may show its release or expert, most
    reliable first. `source` is the unquantized model's name, or ""."""
    hub = [part.removeprefix(_HUB).replace("--", "/") for part in path.parts if part.startswith(_HUB)]
    return (source, *reversed(path.parts[-3:]), *reversed(hub), *reversed(path.resolve().parts[-3:]))


def noise_role(name: str) -> Role | None:
    """Return the expert that a name such as high_noise or HighNoise states, or None if it states none or both."""
    found = {(match[1] or match[2])[0] for match in _NOISE.finditer(_HUMPS.sub("_", name).lower())}
    return None if len(found) != 1 else "high" if "h" in found else "low"


def role_of(path: Path, others: Iterable[Path] = ()) -> Role | None:
    """Return the expert that a path's name states, or None. A bare "high" or "low" counts only if the same name with
    the opposite word exists next to the path or in `others`."""
    if role := noise_role(path.name):
        return role
    words = set(_BARE.findall(_HUMPS.sub("_", path.name).lower()))
    if len(words) != 1:
        return None
    role = "high" if words == {"high"} else "low"
    known = {other.name for other in others}
    other = "low" if role == "high" else "high"
    spellings = ((role, other), (role.title(), other.title()), (role.upper(), other.upper()))
    counterparts = {path.name.replace(word, counterpart) for word, counterpart in spellings} - {path.name}
    return role if any(name in known or path.with_name(name).exists() for name in counterparts) else None


def named_role(path: Path, others: Iterable[Path] = ()) -> Role | None:
    """Return the expert that a file's name states, else its folder's name, else None. A bare "high" or "low" counts
    only if its counterpart is on disk or in `others`."""
    return role_of(path, others) or role_of(path.parent, [other.parent for other in others])


def named_release(names: Iterable[str]) -> str | None:
    """Return the first release that is found in the names of a model's file and folders, as a key of RELEASES. Return
    None if no name contains a release."""
    for name in map(str.lower, names):
        for release, pattern in _NAMED.items():
            if re.search(pattern, name):
                return release
    return None


def named_causal(names: Iterable[str]) -> bool:
    """Return whether file or folder names show a causal model. The first name that states a causal release or an expert
    decides: an expert means False. Without either, return False."""
    clear = (name for name in names if _CAUSAL.search(name.lower()) or noise_role(name))
    return noise_role(next(clear, "high_noise")) is None


def stated_causal(names: Iterable[str], stated: Mapping[str, Any]) -> bool | None:
    """Return whether a model is causal, or None if unclear. `stated` is config.json's content. If it has no class name,
    the `names` of file and folders decide."""
    class_name = stated.get("_class_name")
    if class_name in (CAUSAL_CLASS, GUIDED_CLASS, diffusers_names.CAUSAL_CLASS):
        return True
    if class_name:
        return None if (stated.get("num_layers"), stated.get("dim")) == SMALL else False
    return True if named_causal(names) else None


def detect_release(names: tuple[str, ...], class_name: str, config: ModelConfig) -> Release | None:
    """Return a causal model's release, or None for a base model's expert. `names` are the file, folder and repository
    names from `names_of`, `class_name` is `_class_name` in config.json or "". Raise CheckpointError if the names
    contradict the sizes or camera layers."""
    if class_name == GUIDED_CLASS:
        return RELEASES["v2-pretrain"]
    if config.control is not None and (config.num_layers, config.dim) == SMALL:
        return RELEASES["v2-1.3b"]
    if not stated_causal(names, {"_class_name": class_name}):
        return None
    if config.control is None and not class_name:
        raise CheckpointError(
            f"{names[1]}: a LingBot-World model by its name, but without camera layers, so a plain "
            "Wan model; give LingBot-World's own weights, or rename it"
        )
    named = named_release(names)
    if named == "v2-1.3b" and config.dim > SMALL[1]:
        raise CheckpointError(
            f"{names[1]}: 2.0's 1.3B by its name, but it has {config.num_layers} layers of width "
            f"{config.dim}, expected {SMALL[0]} of {SMALL[1]}; rename its folder"
        )
    return RELEASES[named or "v1"]


def release_note(names: tuple[str, ...], config: ModelConfig) -> str | None:
    """Return a message that a causal model's release is assumed. Return None if the file and folder names `names` or
    the sizes in `config` show the release."""
    if named_release(names) is not None or (config.num_layers, config.dim) == SMALL:
        return None
    return (
        f"The name does not show which causal release this is: assumed {RELEASES['v1'].name}. Another is chosen "
        f"by its released name, or by the command's `release` ({', '.join(RELEASES)})."
    )


def merge_warning(header: Mapping[str, str]) -> str | None:
    """Return a warning if a file's header names both a causal model and an expert of the base model, else None."""
    names = [name for text in header.values() for name in _WORD.findall(str(text)) if name not in _NODE_INPUTS]
    causal = next((name for name in names if _CAUSAL.search(name.lower())), None)
    expert = next(filter(noise_role, names), None)
    if causal is None or expert is None:
        return None
    return (
        f"its header names the causal model {causal} and the base model's expert {expert}; if their weights were "
        "merged, the video is noise: use the weights of one model"
    )


def find_release(name: str) -> Release:
    """Return the release with this key of RELEASES. Raise InputError for another key."""
    if name not in RELEASES:
        raise InputError(f"`release` {name}: expected one of {', '.join(RELEASES)}")
    return RELEASES[name]


def base_release(names: Iterable[str]) -> tuple[str, str, str | None]:
    """Return the name and licence of the base model's release that file and folder names show, by default
    LingBot-World. The third item is a message if the release's settings are unpublished, else None."""
    if any(_BIDIRECTIONAL.search(name.lower()) for name in names):
        name = "LingBot-World 2.0 bidirectional"
        note = (
            f"{name}: its files are those of the base model, so it runs as that does: steps, shift, boundary and "
            "guidance are assumed, since none are published."
        )
        return name, RELEASES["v2"].licence, note
    return "LingBot-World", RELEASES["v1"].licence, None
