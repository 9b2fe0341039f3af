"""Which LingBot-World release a model is, told from its config.json, its shapes and the names of its folders.

Nothing in the tensors says that a model is causal: the files of Fast and of 2.0 have the names and shapes of a base
expert. Where there is no config.json the folder's name says it, as officially. Only 2.0's 1.3B has sizes of its own."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, InputError
from ..model.config import ModelConfig
from ..options import RELEASES, Release
from . import diffusers_names

CAUSAL_CLASS, GUIDED_CLASS = "WanModelFast", "WanModelCausal"
"""`_class_name` in the config.json of LingBot-World Fast and 2.0, and in that of 2.0's causal-pretrain."""
SMALL = 30, 1536
"""Layers and width of 2.0's 1.3B; with camera layers no other release has them."""

_NAMED = {
    "v2-1.3b": r"1\.3b|1p3b",
    "v2-pretrain": r"causal[-_]pretrain|transformer_causal",
    "v2": r"v2|causal[-_]fast",
    "v1": r"fast",
}
"""What the names of a release have in them. 2.0's may have all of it: the first counts."""
_CAUSAL = re.compile(r"1\.3b|1p3b|causal[-_]fast|causal[-_]pretrain|transformer_causal|lingbot[-_]world[-_]fast")
_EXPERT = re.compile(r"(high|low)_noise")
_BIDIRECTIONAL = re.compile(r"bidirectional|[-_]bid(?![a-z])")


def names_of(path: Path, source: str = "") -> tuple[str, ...]:
    """What a model is called, the surest first: the `source` that a quantizer noted, its own name and those of two
    folders around it; and the same where a link leads."""
    return (source, *reversed(path.parts[-3:]), *reversed(path.resolve().parts[-3:]))


def named_release(names: Iterable[str]) -> str | None:
    """The release, a key of RELEASES, that the first of the names tells which tells one."""
    for name in map(str.lower, names):
        for release, pattern in _NAMED.items():
            if re.search(pattern, name):
                return release
    return None


def named_causal(names: Iterable[str]) -> bool:
    """Whether the first of the names that is a causal model's or an expert's is a causal model's."""
    told = (name for name in map(str.lower, names) if _CAUSAL.search(name) or _EXPERT.search(name))
    return not _EXPERT.search(next(told, "high_noise"))


def told_causal(names: Iterable[str], stated: Mapping[str, Any]) -> bool | None:
    """Whether a model with these names and this content of a config.json (empty: there is none) is causal; None where
    its shapes have to tell."""
    class_name = stated.get("_class_name")
    if class_name in (CAUSAL_CLASS, GUIDED_CLASS, diffusers_names.CAUSAL_CLASS):
        return True
    if class_name:
        return None if (stated.get("num_layers"), stated.get("dim")) == SMALL else False
    return True if named_causal(names) else None


def tell_release(names: tuple[str, ...], class_name: str, config: ModelConfig) -> Release | None:
    """The release of a model with these `names` (see `names_of`) and `_class_name` (empty: no config.json); None for
    an expert of the base model. Raises CheckpointError where its name and its shapes contradict each other."""
    if class_name == GUIDED_CLASS:
        return RELEASES["v2-pretrain"]
    if config.control is not None and (config.num_layers, config.dim) == SMALL:
        return RELEASES["v2-1.3b"]
    if not told_causal(names, {"_class_name": class_name}):
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
    """What should be said of a causal model whose release is a guess; None where it is none."""
    if named_release(names) is not None or (config.num_layers, config.dim) == SMALL:
        return None
    return (
        f"Nothing in its name tells which causal release this is: taken for {RELEASES['v1'].name}. The name that "
        f"it was released with says another, or the command's `release` ({', '.join(RELEASES)})."
    )


def release_called(name: str) -> Release:
    """The release that an option names. Raises InputError."""
    if name not in RELEASES:
        raise InputError(f"`release` {name}: expected one of {', '.join(RELEASES)}")
    return RELEASES[name]


def base_release(names: Iterable[str]) -> tuple[str, str, str | None]:
    """Name and licence of a base model of two experts, and what is assumed of it."""
    if any(_BIDIRECTIONAL.search(name.lower()) for name in names):
        name, licence = "LingBot-World 2.0 bidirectional", RELEASES["v2"].licence
        return (
            name,
            licence,
            (
                f"{name}: its files are those of the base model, so it runs as that does: steps, "
                "shift, boundary and guidance are assumed, since none are published."
            ),
        )
    return "LingBot-World", RELEASES["v1"].licence, None
