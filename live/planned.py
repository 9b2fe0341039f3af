"""The adaptation of a rollout's plan to a walk: there is always a window, and the model is a few-step model with a
camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InputError
from ..options import Release, Window
from ..pipeline.spec import STANDING_STILL, RolloutSpec

LATENT_FRAMES = 72
"""The number of latent frames that memory is planned for, at least: full chunks of any size, and more than a release's
window."""
LIVE_WINDOW = Window(18, 6)
"""The window for a release that otherwise attends to the whole video, because a walk has no end."""


def latent_frames(window: int | None) -> int:
    """Return the number of latent frames to plan memory for. Raises InputError for a window that is the whole video."""
    if window == 0:
        raise InputError("`window` 0 is the whole video, and a walk has no end; name a window, such as 18")
    return LATENT_FRAMES * -(-(window or 1) // LATENT_FRAMES)


def check_walkable(spec: RolloutSpec, model: str) -> None:
    """Raise InputError, naming `model`, if the model cannot be used for a walk."""
    if spec.guided:
        raise InputError(
            f"{model}: a walk takes a causal model of a few steps (LingBot-World Fast or 2.0); this one takes many"
        )
    if spec.config.control != 6:
        raise InputError(f"{model}: a walk takes a model that is given a camera, and no keys")


def without_end(
    spec: RolloutSpec, notes: Sequence[str], window: int | None, sink: int | None
) -> tuple[RolloutSpec, tuple[str, ...]]:
    """Return the spec of an endless walk, with the requested window, and the notes for the user."""
    said = tuple(note for note in notes if note != STANDING_STILL)
    if spec.window.frames:
        return spec, said
    held = LIVE_WINDOW.changed(window, sink, spec.chunk)
    note = f"{spec.release} attends to the whole video, but a walk has no end: window {held.frames}, sink {held.sink}."
    return replace(spec, window=held), (*said, note)


def off_release_notes(release: Release, spec: RolloutSpec) -> tuple[str, ...]:
    """Return a note for each of chunk, window, sink and steps that differs from the release's. A note names the effect
    that users saw with the 1.3B. A release without a window gets none."""
    if not release.window.frames:
        return ()
    own, steps = release.window, len(spec.schedule.timesteps)
    notes = {
        f"Chunks of {spec.chunk}: {release.name} was made for {release.chunk}; people saw less sharp frames.": (
            spec.chunk != release.chunk
        ),
        f"Window {spec.window.frames}: {release.name} was made for {own.frames}; users measured the distance from 20: "
        "5 % at 16, 8 % at 14, 13 % at 12, 35 % at 10.": spec.window.frames < own.frames,
        f"Sink {spec.window.sink}: {release.name} was made for {own.sink}; with 2 people saw the layout lost.": (
            spec.window.sink < own.sink
        ),
        f"{steps} steps: {release.name} was made for {len(release.indices)}; people saw 3 pass by eye, 2 and 1 fail.": (
            steps < len(release.indices)
        ),
    }
    return tuple(note for note, applies in notes.items() if applies)
