"""The table of candidates for each kind of work, the best first, with the cards that support them.

LINGBOT_WORLD_KERNELS sets a choice: "int8=torch,attention-8bit=comfy-kitchen"."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, NamedTuple, get_args

import torch

from ...errors import InputError
from .card import HOPPER, Card

Work = Literal[
    "linear", "int8", "fp8", "nvfp4", "mxfp8", "attention", "attention-8bit", "cache-8bit", "convolution", "norms"
]
"""The kinds of work.

`linear`, `int8`, `fp8`: products in 16 bits, from int8 and from float8_e4m3fn. `nvfp4`, `mxfp8`: products of weights in
these formats with inputs in the same format. `cache-8bit`: attention to keys and values that a cache holds in 8 bits.
`convolution`: convolutions of the VAE's decoder."""
WORKS: tuple[Work, ...] = get_args(Work)

VARIABLE = "LINGBOT_WORLD_KERNELS"
OURS = "LingBot-World"
KITCHEN = "comfy-kitchen"
CUDNN_FRONTEND = "nvidia-cudnn-frontend"
SAGE = "sageattention"
TRITON = "triton"
MODULES = {KITCHEN: "comfy_kitchen", CUDNN_FRONTEND: "cudnn", SAGE: "sageattention", TRITON: "triton"}
"""The modules of the candidates that are separate packages, by name on PyPI."""

_HALF, _FLOATS = (torch.bfloat16, torch.float16), (torch.bfloat16, torch.float16, torch.float32)


class Candidate(NamedTuple):
    """A candidate for a kind of work: its name, the cards that support it, and its input dtypes.

    The name of another package's candidate is the package's on PyPI."""

    work: Work
    name: str
    cards: Callable[[Card], bool]
    dtypes: tuple[torch.dtype, ...] = _HALF


def _majors(*numbers: int) -> Callable[[Card], bool]:
    return lambda card: card.maker == "nvidia" and card.capability[0] in numbers


def _since(major: int, minor: int) -> Callable[[Card], bool]:
    return lambda card: card.maker == "nvidia" and card.capability >= (major, minor)


def _tensor_cores(card: Card) -> bool:
    """Return whether a card may multiply int8: NVIDIA since 7.5, and AMD, where comfy-kitchen's check decides."""
    return card.maker == "amd" or _since(7, 5)(card)


def _off_hopper(card: Card) -> bool:
    """Return whether int8 attention gains on a card: on an H200 it takes longer than exact attention."""
    return card.maker == "amd" or (_since(7, 5)(card) and card.capability[0] in (7, 8, 12))


def _fast_triton(card: Card) -> bool:
    """Return whether Triton compiles products to instructions for matrices; for 7.5 it compiles to plain ones."""
    return card.maker == "amd" or _since(8, 0)(card)


def _kitchen_convolves(card: Card) -> bool:
    """Return whether comfy-kitchen's convolution may gain: on an H200 it was slower than torch's."""
    return _tensor_cores(card) and card.capability[0] != HOPPER


def _any(_card: Card) -> bool:
    return True


def _gpu(card: Card) -> bool:
    return card.maker in ("nvidia", "amd")


TABLE: tuple[Candidate, ...] = (
    Candidate("linear", "torch", _any, _FLOATS),
    Candidate("int8", KITCHEN, _tensor_cores, _FLOATS),
    Candidate("int8", "torch", _tensor_cores, _FLOATS),
    Candidate("fp8", "torch", _since(8, 9), _FLOATS),
    Candidate("fp8", "torch-one-scale", _since(8, 9), _FLOATS),
    Candidate("nvfp4", KITCHEN, _majors(10, 12)),
    Candidate("mxfp8", KITCHEN, _majors(10, 12)),
    Candidate("attention", OURS, _majors(HOPPER), (torch.bfloat16,)),
    Candidate("attention", "cudnn", _since(9, 0)),
    Candidate("attention", "flash", _gpu),
    Candidate("attention", "efficient", _gpu, _FLOATS),
    Candidate("attention", "torch", _any, _FLOATS),
    Candidate("attention-8bit", OURS, _majors(HOPPER), (torch.bfloat16,)),
    Candidate("attention-8bit", CUDNN_FRONTEND, _majors(9, 10, 11, 12)),
    Candidate("attention-8bit", SAGE, _majors(8, 12)),
    Candidate("attention-8bit", KITCHEN, _off_hopper),
    Candidate("cache-8bit", OURS, _majors(HOPPER), (torch.bfloat16,)),
    Candidate("cache-8bit", CUDNN_FRONTEND, _majors(9, 10, 11, 12)),
    Candidate("cache-8bit", "torch", _any, _FLOATS),
    Candidate("convolution", OURS, _majors(HOPPER), (torch.float16,)),
    Candidate("convolution", TRITON, _fast_triton, (torch.float16,)),
    Candidate("convolution", KITCHEN, _kitchen_convolves, (torch.float16,)),
    Candidate("convolution", "torch", _any, _FLOATS),
    Candidate("norms", TRITON, _gpu, _FLOATS),
    Candidate("norms", "torch", _any, _FLOATS),
)

BY_ORDER: dict[Work, Callable[[Card], bool]] = {
    "int8": _majors(HOPPER),
    "attention-8bit": _majors(HOPPER),
    "cache-8bit": _any,
    "attention": _any,
    "fp8": _any,
    "convolution": _majors(HOPPER),
    "norms": _any,
}
"""The cards on which the first right candidate is chosen without timing, by kind of work.

The order there was measured, or timing costs more than the choice gains. On other cards the fastest right candidate is
chosen."""


def candidates(work: Work, card: Card) -> tuple[Candidate, ...]:
    """Return the candidates of a card for a kind of work, the best first.

    Raises InputError if LINGBOT_WORLD_KERNELS names an unknown kind of work or candidate."""
    wanted = settings().get(work)
    found = [each for each in TABLE if each.work == work and each.cards(card)]
    return tuple(each for each in found if wanted in (None, each.name))


def serves(work: Work, name: str, card: Card) -> bool:
    """Return whether a card supports the named candidate for a kind of work, and no setting selects another one."""
    return any(each.name == name for each in candidates(work, card))


def settings() -> dict[str, str]:
    """Return the choices that LINGBOT_WORLD_KERNELS sets, by work. Raises InputError for an unknown one."""
    text = os.environ.get(VARIABLE, "").strip()
    pairs = [part.partition("=")[::2] for part in text.split(",") if part.strip()]
    chosen = {work.strip(): name.strip() for work, name in pairs}
    for work, name in chosen.items():
        names = [each.name for each in TABLE if each.work == work]
        if name not in names:
            expected = f"{work}={' or '.join(names)}" if names else f"one of {', '.join(WORKS)}, such as int8=torch"
            raise InputError(f"{VARIABLE}: {work}={name} is not a choice; expected {expected}")
    return chosen


def suited_8_bits(card: Card) -> Literal["fp8", "int8"]:
    """Return the 8-bit dtype of a card's products: fp8 on server GPUs since Hopper, else int8.

    int8 gains nothing on these GPUs. Elsewhere it is more precise, and faster on GeForce, Radeon and Ampere."""
    return "fp8" if _majors(HOPPER, 10)(card) else "int8"


def missing(name: str, card: Card) -> str | None:
    """Return the reason why a candidate's package cannot serve a card, or None.

    Either the package is not installed, or its own check fails."""
    module = MODULES.get(name)
    if module is None:
        return None
    if find_spec(module) is None:
        return "not installed"
    return _kitchen_refuses(card) if name == KITCHEN else None


def _kitchen_refuses(card: Card) -> str | None:
    backend = "hip" if card.maker == "amd" else "cuda"
    found = import_module("comfy_kitchen").list_backends().get(backend, {})
    if found.get("disabled"):
        return f"its {backend} kernels are disabled in this process"
    if not found.get("available"):
        return str(found.get("unavailable_reason") or f"it has no {backend} kernels")
    return None if "int8_linear" in found.get("capabilities", ()) else f"it has no matrix kernels for {card.known_as}"
