"""A report on a path from a file: its matrix convention, the evidence for it, and its scale."""

from typing import NamedTuple

import numpy as np

from ..errors import CameraError
from .advice import FASTEST_TURN_DEG, motion
from .conventions import CONVENTIONS, reinterpret
from .path import CameraPath
from .plucker import framewise_relative, latent_poses, longest_step

LONGEST_RATIO = 2.0
"""A convention is implausible if its path is over LONGEST_RATIO times as long as the other convention's path."""
PASSING, DECISIVE = 0.5, 0.5
"""Thresholds of the plausibility scores, -1 to 1: a path passes above PASSING; a difference above DECISIVE decides
between two conventions."""
MEETING, TURNED_DEG = 0.1, 10.0
"""Thresholds at which the viewing axes of a path's poses count as meeting at a point. MEETING: the maximum distance of
an axis from the point, divided by the camera's distance from it. TURNED_DEG: the minimum angle by which some axis
differs from the first."""
MIN_FORWARD = 0.3
"""The minimum fraction of motion forwards or backwards with which the direction of motion counts for or against a
convention, if the camera looks at its orbit's centre."""
Z_IS_UP = ("transforms", "camera_path")
"""The formats in which the world's z axis points up."""
X_AHEAD, SIDEWAYS = ("kitti", "tum"), 0.8
"""X_AHEAD: the file formats whose poses may be a vehicle's, with x forward. SIDEWAYS: the fraction of motion along x
above which the user is warned that the poses may be a vehicle's."""
UNITS = {"kitti": "metres", "vipe": "of ViPE's metres"}


class _Comparison(NamedTuple):
    """A comparison of a path under its convention and under an alternative.

    verdict: 1 for the path's convention, -1 for the alternative, 0 if undecided.
    why: the reason for the user, or "".
    score: the plausibility of the alternative, to rank several alternatives.
    """

    verdict: int
    why: str
    score: float


class _Score(NamedTuple):
    """A plausibility score from -1 to 1, and the messages for a pass and a failure."""

    value: float
    yes: str
    no: str


def report_origin(path: CameraPath, frames: int | None = None) -> list[str]:
    """Return messages on the file, convention and scale of a path that was read from a file. Return an empty list for
    other paths. `frames`: the video's length, by default the path's."""
    if path.origin is None:
        return []
    read = f"Read as {path.origin.format}: {len(path)} poses, field of view {path.fov_deg:.1f} degrees."
    return [read, _convention(path), *_scale(path, frames or len(path))]


def summarize_convention(path: CameraPath) -> str:
    """Return a line on the file's format, its convention and the evidence for it, or "" for a path without a file."""
    if path.origin is None:
        return ""
    verdicts = {
        1: "borne out by the path",
        0: "the path alone does not show it; if the video moves or turns the other way, choose another `convention`",
        -1: "the path suggests another convention",
    }
    least = min(each.verdict for each in _compare_conventions(path).values())
    return f"Read as {path.origin.format}, {path.origin.convention}: {verdicts[least]}."


def convention_warnings(path: CameraPath) -> list[str]:
    """Return one warning, in a list, if the camera moves along its x axis, as the poses of vehicles do, or if another
    convention than the file's is more plausible. Otherwise return an empty list."""
    if path.origin is None:
        return []
    steps = framewise_relative(path.c2w[::4])[1:, :3, 3]
    if path.origin.format in X_AHEAD and steps[:, 0].sum() > SIDEWAYS * np.linalg.norm(steps, axis=1).sum():
        return [
            "The camera moves sideways, along its x axis. The poses of a car, a robot or an IMU do so (KITTI-360's "
            "poses.txt, EuRoC's ground truth): if these are such, export those of the camera."
        ]
    better = {name: each for name, each in _compare_conventions(path).items() if each.verdict < 0}
    if not better:
        return []
    name = max(better, key=lambda name: better[name].score)
    return [f"{better[name].why} If this differs from the recording, try the convention {name}."]


def _convention(path: CameraPath) -> str:
    assert path.origin is not None
    name, chosen_by = path.origin.convention, "as you chose" if path.origin.overridden else "which the format settles"
    others = _compare_conventions(path)
    reasons_for, reasons_against = (
        list(dict.fromkeys(other.why for other in others.values() if other.verdict == verdict)) for verdict in (1, -1)
    )
    messages = [f"Taken as {CONVENTIONS[name].description} ({name}), {chosen_by}.", *reasons_against]
    if reasons_for:
        messages.append(f"For it: {'; '.join(reasons_for)}.")
    if undecided := [other for other, comparison in others.items() if not comparison.verdict]:
        messages.append(
            f"The path alone does not distinguish it from {', '.join(undecided)}: if the camera moves or turns "
            "differently in the drawing than in the recording, try these; a path of a left-handed program "
            "(Unity, Unreal) is mirrored, which no path shows."
        )
    return " ".join(messages)


def _compare_conventions(path: CameraPath) -> dict[str, _Comparison]:
    """Compare the plausibility of the path under its convention and under every convention with another direction or
    other axes. Return the comparisons by convention name."""
    assert path.origin is not None
    read = CONVENTIONS[path.origin.convention]
    c2w = path.c2w[::4]
    others = {
        name: each
        for name, each in CONVENTIONS.items()
        if not each.by_column and (each.camera_to_world, each.opengl_axes) != (read.camera_to_world, read.opengl_axes)
    }
    z_up = path.origin.format in Z_IS_UP
    return {name: _compare(c2w, reinterpret(c2w, read, each), name, z_up) for name, each in others.items()}


def _compare(read: np.ndarray, other: np.ndarray, name: str, z_up: bool) -> _Comparison:
    mine, theirs = (_scores(each, z_up) for each in (read, other))
    score = next((each.value for each in theirs.values() if abs(each.value) > PASSING), 0.0)
    lengths = [float(np.linalg.norm(np.diff(each[:, :3, 3], axis=0), axis=1).sum()) for each in (read, other)]
    if lengths[1] > LONGEST_RATIO * lengths[0]:
        return _Comparison(1, f"read as {name} the camera would go {_ratio(lengths[1], lengths[0])} as far", score)
    if lengths[0] > LONGEST_RATIO * lengths[1] and not mine["meets"].value > PASSING:
        return _Comparison(-1, f"The camera goes {_ratio(*lengths)} as far as under the convention {name}.", 2 + score)
    if mine["meets"].value > PASSING and abs(mine["ahead"].value) < MIN_FORWARD:
        del mine["ahead"], theirs["ahead"]
    for ours, alternative in zip(mine.values(), theirs.values(), strict=True):
        if ours.value - alternative.value > DECISIVE and ours.value > PASSING:
            return _Comparison(1, ours.yes, score)
        if alternative.value - ours.value > DECISIVE and alternative.value > PASSING:
            why = f"The camera {ours.no}; read as {name} it {ours.yes.removeprefix('it ')}."
            return _Comparison(-1, why, score)
    return _Comparison(0, "", score)


def _ratio(more: float, less: float) -> str:
    times = more / less if less > 1e-3 * more else 0
    return f"{times:.0f} times" if times else "more than a thousand times"


def _scores(c2w: np.ndarray, z_up: bool) -> dict[str, _Score]:
    """Return scores, -1 to 1, of how plausible the poses `c2w` [n, 4, 4] are.

    upright: how upright the camera is; 0 if the world's z axis may not be up (`z_up` is False).
    ahead: the fraction of motion that is forwards; negative if backwards.
    meets: 1 if the camera looks at its orbit's centre, -1 if it looks away, 0 without an orbit.
    """
    steps = framewise_relative(c2w)[1:, :3, 3]
    length = float(np.linalg.norm(steps, axis=1).sum())
    ahead = float(steps[:, 2].sum()) / length if length else 0.0
    backwards = "moves backwards for most of the path" if ahead < -PASSING else "does not move in its viewing direction"
    upright = float(-c2w[:, 2, 1].mean()) if z_up else 0.0
    return {
        "upright": _Score(upright, "it stands upright in a world whose z axis is up", "stands on its head"),
        "ahead": _Score(ahead, "it moves in its viewing direction", backwards),
        "meets": _Score(
            _score_focus(c2w), "it looks at the centre of its orbit", "looks away from the centre of its orbit"
        ),
    }


def _score_focus(c2w: np.ndarray) -> float:
    """Return 0 if the viewing axes do not meet at a point. Otherwise return the mean over cameras: 1 if the camera
    faces the point, -1 if not."""
    places, views = c2w[:, :3, 3], c2w[:, :3, 2]
    if np.rad2deg(np.arccos(np.clip((views @ views[0]).min(), -1, 1))) < TURNED_DEG:
        return 0.0
    across = np.eye(3) - views[:, :, None] * views[:, None, :]
    point = np.linalg.lstsq(across.sum(0), np.einsum("fij,fj->i", across, places), rcond=1e-6)[0]
    away = np.linalg.norm(point - places, axis=1)
    depth = ((point - places) * views).sum(1)
    missed = np.sqrt(np.maximum(away**2 - depth**2, 0))
    return float(np.sign(depth).mean()) if (missed <= MEETING * away).all() and away.all() else 0.0


def _scale(path: CameraPath, frames: int) -> list[str]:
    assert path.origin is not None
    try:
        steps, turns_deg = motion(path, frames)
        longest = longest_step(path.c2w, frames=frames)
    except CameraError:  # too few poses: `advice.warnings` reports this
        return []
    turned = f"It turns by up to {turns_deg.max():.1f} degrees a step, official paths by up to {FASTEST_TURN_DEG:.0f}."
    if not longest:
        return [f"Scale: the camera stays where it is. {turned}"]
    poses = latent_poses(path.c2w, frames)
    units = UNITS.get(path.origin.format, "of the file's units")
    return [
        f"Scale: the longest of {len(poses) - 1} steps between latent frames, {longest:.3g} {units}, becomes 1; "
        f"the usual one is {np.median(steps):.2f}. The model sees no units and no speed: a drive and a stroll give "
        f"the same input. {turned}"
    ]
