"""Checks and changes of a causal model's settings for a walk (a steered video), which has no end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InputError
from ..options import Release, Window
from ..pipeline.spec import STANDING_STILL, RolloutSpec

LATENT_FRAMES = 72
"""The minimum number of latent frames for which memory is planned. Each released model's chunk size divides this
number."""
LIVE_WINDOW = Window(18, 6)
"""The default attention window of a walk (a steered video) if the model's setting is the whole video: 18 latent frames,
including the video's first 6 as the sink."""


def latent_frames(window: int | None) -> int:
    """Return the number of latent frames for which a walk's memory is planned: the smallest multiple of LATENT_FRAMES
    that is at least `window`, or LATENT_FRAMES if `window` is None. Raises InputError if `window` is 0."""
    if window == 0:
        raise InputError("`window` 0 is the whole video, and a walk has no end; name a window, such as 18")
    return LATENT_FRAMES * -(-(window or 1) // LATENT_FRAMES)


def check_walkable(spec: RolloutSpec, model: str) -> None:
    """Raise InputError for a guided model, a model without camera input, or a model with keyboard input. The message
    begins with `model`."""
    if spec.guided:
        raise InputError(
            f"{model}: a walk takes a causal model of a few steps (LingBot-World Fast or 2.0); this one takes many"
        )
    if spec.config.control != 6:
        raise InputError(f"{model}: a walk takes a model with camera input and without key input")


def plan_endless(
    spec: RolloutSpec, notes: Sequence[str], window: int | None, sink: int | None
) -> tuple[RolloutSpec, tuple[str, ...]]:
    """Adapt a rollout's `spec` and `notes` (texts for the user) to a walk, which has no end. A `spec` that attends to
    the whole video gets the attention window `window` and `sink`, and a note about them. None selects LIVE_WINDOW's
    value. Otherwise the window and sink stay."""
    notes = tuple(note for note in notes if note != STANDING_STILL)
    if spec.window.frames:
        return spec, notes
    held = LIVE_WINDOW.changed(window, sink, spec.chunk)
    note = f"{spec.release} attends to the whole video, but a walk has no end: window {held.frames}, sink {held.sink}."
    return replace(spec, window=held), (*notes, note)


def off_release_notes(release: Release, spec: RolloutSpec) -> tuple[str, ...]:
    """Return a note for each setting in `spec` that may worsen the video, because the release was made for another:
    chunk size, window, sink or step count."""
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
