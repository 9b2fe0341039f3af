"""The releases of the causal model, and what each was made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import InputError
from .few_steps import FAST_INDICES, V2_INDICES

CAUSAL_SHIFT = 10.0


@dataclass(frozen=True)
class Release:
    """What a release of the causal model was made for; `window` and `sink` in latent frames, 0 is the whole video."""

    name: str
    indices: tuple[int, ...]
    window: int
    sink: int
    licence: str


RELEASES = {
    "v1": Release("LingBot-World Fast", FAST_INDICES, 0, 0, "Apache-2.0"),
    "v2": Release("LingBot-World 2.0", V2_INDICES, 18, 6, "CC BY-NC-SA 4.0, for non-commercial use"),
}


def release_of(names: Iterable[str]) -> Release:
    """The release of a checkpoint with these `names`. The files of both are alike: 2.0 is told by the name of its
    folder, or of the folder that it was quantized from."""
    return RELEASES["v2" if "v2" in " ".join(names).lower() else "v1"]


def step_indices(schedule: str | tuple[int, ...] | None, release: Release) -> tuple[int, ...]:
    """The steps that a `schedule` names: v1, v2 or indices such as 0,250,500,750; None takes the release's own.
    Raises InputError."""
    if schedule is None:
        return release.indices
    if isinstance(schedule, tuple):
        return schedule
    if schedule in RELEASES:
        return RELEASES[schedule].indices
    try:
        return tuple(int(index) for index in schedule.split(","))
    except ValueError:
        raise InputError(f"`schedule` {schedule}: expected v1, v2 or indices such as 0,250,500,750") from None
