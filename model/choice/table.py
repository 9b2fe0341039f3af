"""The table of kernels for each operation, best first. The environment variable LINGBOT_WORLD_KERNELS selects kernels
from the table ("int8=torch")."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, NamedTuple, get_args

import torch

from ...errors import InputError
from .card import HOPPER, Card

Work = Literal[
    "linear", "int8", "fp8", "nvfp4", "mxfp8", "attention", "attention-8bit", "cache-8bit", "convolution", "norms"
]
"""An operation for which a kernel is chosen: a matrix product in a number format, attention, the VAE decoder's
convolutions, or a block's layer norms. `cache-8bit` is attention to an 8-bit KV cache."""
WORKS: tuple[Work, ...] = get_args(Work)

VARIABLE = "LINGBOT_WORLD_KERNELS"
OURS = "LingBot-World"
KITCHEN = "comfy-kitchen"
CUDNN_FRONTEND = "nvidia-cudnn-frontend"
SAGE = "sageattention"
TRITON = "triton"
NOT_INSTALLED = "not installed"
MODULES = {KITCHEN: "comfy_kitchen", CUDNN_FRONTEND: "cudnn", SAGE: "sageattention", TRITON: "triton"}
"""A mapping from the PyPI name of each package with kernels to the name of the module to import."""

_HALF, _FLOATS = (torch.bfloat16, torch.float16), (torch.bfloat16, torch.float16, torch.float32)


class Candidate(NamedTuple):
    """A kernel that may be chosen for the operation `work`.

    name: a PyPI package, or a short name for our own or torch's kernel.
    cards: the function that decides whether a GPU is supported.
    dtypes: the supported dtypes of the inputs.
    """

    work: Work
    name: str
    cards: Callable[[Card], bool]
    dtypes: tuple[torch.dtype, ...] = _HALF


def _majors(*numbers: int) -> Callable[[Card], bool]:
    return lambda card: card.maker == "nvidia" and card.capability[0] in numbers


def _since(major: int, minor: int) -> Callable[[Card], bool]:
    return lambda card: card.maker == "nvidia" and card.capability >= (major, minor)


def _multiplies_int8(card: Card) -> bool:
    """Return whether a GPU may have int8 matrix instructions. All AMD GPUs pass; those without them fail the accuracy
    test later."""
    return card.maker == "amd" or _since(7, 5)(card)


def _kitchen_attends(card: Card) -> bool:
    """Return whether comfy-kitchen's 8-bit attention is a candidate on the GPU `card`. It is on AMD GPUs, and on NVIDIA
    GPUs of compute capability 7.5, 8.x and 12.x."""
    return card.maker == "amd" or (_since(7, 5)(card) and card.capability[0] in (7, 8, 12))


def _fast_triton(card: Card) -> bool:
    """Return whether Triton compiles matrix products to tensor-core (MMA) instructions on a GPU."""
    return card.maker == "amd" or _since(8, 0)(card)


def _kitchen_convolves(card: Card) -> bool:
    """Return whether comfy-kitchen's convolution may be faster than torch's on a GPU."""
    return _multiplies_int8(card) and card.capability[0] != HOPPER


def _any(_card: Card) -> bool:
    return True


def _gpu(card: Card) -> bool:
    return card.maker in ("nvidia", "amd")


TABLE: tuple[Candidate, ...] = (
    Candidate("linear", "torch", _any, _FLOATS),
    Candidate("int8", KITCHEN, _multiplies_int8, _FLOATS),
    Candidate("int8", "torch", _multiplies_int8, _FLOATS),
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
    Candidate("attention-8bit", KITCHEN, _kitchen_attends),
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

UNTIMED: dict[Work, Callable[[Card], bool]] = {
    "int8": _majors(HOPPER),
    "attention-8bit": _majors(HOPPER),
    "cache-8bit": _any,
    "attention": _any,
    "fp8": _any,
    "convolution": _majors(HOPPER),
    "norms": _any,
}
"""For each operation, a function of the GPU. If it returns True, the first accurate kernel in TABLE is used without
timing. Otherwise the accurate kernels are timed, and the fastest is used."""


def candidates(work: Work, card: Card) -> tuple[Candidate, ...]:
    """Return the kernels for an operation on a device, best first, or only the kernel that LINGBOT_WORLD_KERNELS
    selects. Raise InputError if the variable is invalid."""
    wanted = settings().get(work)
    found = (each for each in TABLE if each.work == work and each.cards(card))
    return tuple(each for each in found if wanted in (None, each.name))


def serves(work: Work, name: str, card: Card) -> bool:
    """Return whether the kernel `name` may be chosen for an operation on a GPU."""
    return any(each.name == name for each in candidates(work, card))


def settings() -> dict[str, str]:
    """Return the kernels that LINGBOT_WORLD_KERNELS selects, by operation. Raise InputError for an unknown name, or two
    kernels of one operation."""
    text = os.environ.get(VARIABLE, "").strip()
    pairs = [part.partition("=")[::2] for part in text.split(",") if part.strip()]
    chosen: dict[str, str] = {}
    for work, name in ((work.strip(), name.strip()) for work, name in pairs):
        if work in chosen:
            raise InputError(f"{VARIABLE} selects {work}={chosen[work]} and {work}={name}; leave one out")
        chosen[work] = name
        names = [each.name for each in TABLE if each.work == work]
        if name not in names:
            expected = f"{work}={' or '.join(names)}" if names else f"one of {', '.join(WORKS)}, such as int8=torch"
            raise InputError(f"{VARIABLE}: {work}={name} is not a choice; expected {expected}")
    return chosen


def preferred_8bit_format(card: Card) -> Literal["fp8", "int8"]:
    """Return the number format for 8-bit matrix products: "fp8" on Hopper and Blackwell server GPUs, because their int8
    kernels are slow, else "int8"."""
    return "fp8" if _majors(HOPPER, 10)(card) else "int8"


def missing(name: str, card: Card) -> str | None:
    """Return why the package of the kernel `name` cannot run on a GPU, or None if it can or no package is needed."""
    module = MODULES.get(name)
    if module is None:
        return None
    why = _unusable(module)
    return _kitchen_refuses(card) if why is None and name == KITCHEN else why


@cache
def triton_loads() -> bool:
    """Return whether Triton can be imported. If an installed Triton fails, the reason is logged."""
    why = _unusable(MODULES[TRITON])
    if why not in (None, NOT_INSTALLED):
        logging.warning("Triton is not used: %s", why)
    return why is None


def _unusable(module: str) -> str | None:
    if find_spec(module) is None:
        return NOT_INSTALLED
    try:
        import_module(module)
    except Exception as reason:  # such as a DLL that is missing
        return f"it does not load: {' '.join(str(reason).split())[:200] or type(reason).__name__}"
    return None


def _kitchen_refuses(card: Card) -> str | None:
    backend = "hip" if card.maker == "amd" else "cuda"
    kitchen = import_module(MODULES[KITCHEN])
    if not hasattr(kitchen, "list_backends"):
        return "this version has no kernels; update comfy-kitchen"
    found = kitchen.list_backends().get(backend, {})
    if found.get("disabled"):
        return f"its {backend} kernels are disabled in this process"
    if not found.get("available"):
        return str(found.get("unavailable_reason") or f"it has no {backend} kernels")
    return None if "int8_linear" in found.get("capabilities", ()) else f"it has no matrix kernels for {card.known_as}"
