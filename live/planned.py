"""The adaptation of a causal model's plan (RolloutSpec) to a walk (a steered video), which has no end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import InputError
from ..options import Release, Window
from ..pipeline.spec import STANDING_STILL, RolloutSpec

LATENT_FRAMES = 72
"""A walk (a steered video) has no fixed length, so its memory is planned for a video of at least this many latent
frames. The number is a multiple of each released model's chunk size. It is longer than the released models' attention
windows, except those of unlimited length."""
LIVE_WINDOW = Window(18, 6)
"""The attention window in a walk (a steered video) for a model with the whole video as its default window. A walk has
no end, so its window must be limited: to 18 latent frames, of which 6 are the sink."""


def latent_frames(window: int | None) -> int:
    """Return the number of latent frames of the video for which a walk's memory is planned. A walk itself has no end.

    The result is the smallest multiple of LATENT_FRAMES that is at least `window`, the attention window in latent
    frames. It is LATENT_FRAMES if `window` is None (the model's default). Raises InputError if `window` is 0 (the whole
    video).
    """
    if window == 0:
        raise InputError("`window` 0 is the whole video, and a walk has no end; name a window, such as 18")
    return LATENT_FRAMES * -(-(window or 1) // LATENT_FRAMES)


def check_walkable(spec: RolloutSpec, model: str) -> None:
    """Raise InputError if the model of `spec` cannot generate a walk (a steered video). `model` is its name in the
    message. There are two cases:

    - The model is guided, and thus needs too many steps.
    - Its camera input is missing, or also has W, A, S, D flags.
    """
    if spec.guided:
        raise InputError(
            f"{model}: a walk takes a causal model of a few steps (LingBot-World Fast or 2.0); this one takes many"
        )
    if spec.config.control != 6:
        raise InputError(f"{model}: a walk takes a model with camera input and without key input")


def plan_endless(
    spec: RolloutSpec, notes: Sequence[str], window: int | None, sink: int | None
) -> tuple[RolloutSpec, tuple[str, ...]]:
    """Return `spec` and `notes` (notes for the user), adapted to a walk, which has no end.

    - The note about a camera that stands still is removed.
    - If `spec` attends to the whole video, its window becomes LIVE_WINDOW, and a note reports this. `window` and
      `sink`, in latent frames, replace the values of LIVE_WINDOW unless they are None.
    - If the window of `spec` is limited, it stays, and `window` and `sink` are ignored.

    Raises InputError if the new window is too small for its sink and a chunk.
    """
    notes = tuple(note for note in notes if note != STANDING_STILL)
    if spec.window.frames:
        return spec, notes
    held = LIVE_WINDOW.changed(window, sink, spec.chunk)
    note = f"{spec.release} attends to the whole video, but a walk has no end: window {held.frames}, sink {held.sink}."
    return replace(spec, window=held), (*notes, note)


def off_release_notes(release: Release, spec: RolloutSpec) -> tuple[str, ...]:
    """Return notes for the user about settings in `spec` that may reduce the quality, compared with the settings of
    `release`. There is a note for another chunk size, a smaller window, a smaller sink, and fewer steps.

    Each note names an effect that was seen or measured with the 1.3B model. The result is empty for a release that
    attends to the whole video.
    """
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
