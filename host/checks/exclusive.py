"""Checks of context windows and step caches on a MODEL: impossible settings, and nodes that exclude each other."""

import math
from collections.abc import Iterable, Sequence

from ...errors import InputError
from ..model.patches import additions, maker_of
from ..prompt.notice import show_warning

EASY_CACHE, LAZY_CACHE = "easycache", "lazycache"
FRAME_AXIS = 2
"""The axis of a latent [B, 16, f, h, w] that context windows divide."""


def check_windows(patchers: Iterable, shape: Sequence[int]) -> None:
    """Raise InputError if the context windows on a MODEL cannot be used with a latent of this shape."""
    for patcher in patchers:
        handler = patcher.model_options.get("context_handler")
        length, dim = getattr(handler, "context_length", math.inf), getattr(handler, "dim", FRAME_AXIS)
        node = maker_of(patcher, lambda each: each.model_options.get("context_handler") is handler)  # noqa: B023
        if dim < len(shape) and length >= shape[dim]:
            show_warning(f"{node} has dim {dim}, not {FRAME_AXIS}, so it changes nothing." if dim != FRAME_AXIS else "")
            continue
        if dim != FRAME_AXIS:
            raise InputError(f"{node} has dim {dim}: set it to {FRAME_AXIS}, the frames of a video's latent")
        overlap, schedule = handler.context_overlap, handler.context_schedule.name
        if overlap >= length and schedule != "batched":
            raise InputError(
                f"{node} has windows of {length} latent frames that overlap by {overlap}: lower context_overlap, or "
                "raise context_length"
            )
        if EASY_CACHE in additions(patcher):
            raise InputError(
                f"{_cache_of(patcher, EASY_CACHE)} cannot be used with {node}: EasyCache compares each forward with "
                "the one before, which computes another window. Remove EasyCache, or replace it by LazyCache or the "
                "sampler's reuse_threshold, which compare whole steps"
            )


def check_caches(patchers: Iterable, sampler) -> None:
    """Raise InputError if a MODEL has both EasyCache and LazyCache. Show a warning if a MODEL has one of them and
    `sampler` has a `reuse_threshold`."""
    found = dict[str, None]()
    for patcher in patchers:
        names = [name for name in (EASY_CACHE, LAZY_CACHE) if name in additions(patcher, with_lazycache=True)]
        if len(names) > 1:
            easy, lazy = (_cache_of(patcher, name) for name in names)
            raise InputError(f"{easy} and {lazy} are on the same model and share one state: remove one of them")
        found |= dict.fromkeys(names)
    if found and getattr(sampler, "reuse_threshold", 0):
        show_warning(
            f"{' and '.join(sorted(found))} on the model and reuse_threshold both skip steps, and each sees only the "
            "steps that the other computes: use one of them."
        )


def _cache_of(patcher, name: str) -> str:
    return maker_of(patcher, lambda each: name in additions(each, with_lazycache=True))
