"""A report on a path that was read from a file: the matrix convention, whether the path supports it, and the scale that
the model will see."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import CameraError
from .advice import FASTEST_TURN_DEG, motion
from .conventions import CONVENTIONS, read_otherwise
from .path import CameraPath
from .plucker import framewise_relative, latent_poses, longest_step

LONGER = 2.0
"""A convention is implausible if it makes the path longer by this factor: an inverted matrix turns a rotation on the
spot into a swing around the world's origin."""
SENSE, APART = 0.5, 0.5
"""The score above which a plausibility test of a path passes, and the difference of two conventions' scores that
decides between them. Scores are from -1 to 1."""
MEETING, TURNED_DEG = 0.1, 10.0
"""Views meet at one point if their axes pass it within MEETING times its distance and turn by TURNED_DEG in total."""
Z_IS_UP = ("transforms", "camera_path")
"""The formats with a z-up world: Blender's, and nerfstudio's because it rotates the scene."""
UNITS = {"kitti": "metres", "vipe": "of ViPE's metres"}


class _Other(NamedTuple):
    """The comparison of an alternative convention with the chosen one. `value`: 1 if the path is less plausible under
    the alternative, -1 if more, 0 if undecided. `why` is the reason as a message. `sense` is the alternative's score
    from -1 to 1, plus 2 if the alternative makes the path much shorter."""

    value: int
    why: str
    sense: float


@dataclass(frozen=True)
class _Sign:
    """A plausibility score of a path from -1 to 1, and messages for a path that passes (`yes`) or fails (`no`)."""

    value: float
    yes: str
    no: str


def explained(path: CameraPath, frames: int | None = None) -> list[str]:
    """Return messages on the file's content, its convention and the reason for it, and the scale of a video of `frames`
    frames (None: the full path). The list is empty for a path without an `origin`."""
    if path.origin is None:
        return []
    read = f"Read as {path.origin.format}: {len(path)} poses, field of view {path.fov_deg:.1f} degrees."
    return [read, _convention(path), *_scale(path, frames or len(path))]


def in_short(path: CameraPath) -> str:
    """Return a one-line summary of the convention for the preview; an empty string for a path without an `origin`."""
    if path.origin is None:
        return ""
    verdict = {1: "borne out by the path", 0: "the path alone cannot tell", -1: "the path suggests another convention"}
    least = min(other.value for other in _compared(path).values())
    return f"Read as {path.origin.format}, {path.origin.convention}: {verdict[least]}."


def doubts(path: CameraPath) -> list[str]:
    """Return a warning if the path is more plausible under another convention; usually an empty list."""
    better = {} if path.origin is None else {n: other for n, other in _compared(path).items() if other.value < 0}
    if not better:
        return []
    name = max(better, key=lambda name: better[name].sense)
    return [f"{better[name].why} If this differs from the recording, try the convention {name}."]


def _convention(path: CameraPath) -> str:
    assert path.origin is not None
    name, whose = path.origin.convention, "as you said" if path.origin.named else "which the format settles"
    taken = f"Taken as {CONVENTIONS[name].description} ({name}), {whose}."
    others = _compared(path)
    for_it, against = (
        list(dict.fromkeys(other.why for other in others.values() if other.value == value)) for value in (1, -1)
    )
    alike = [other for other, told in others.items() if not told.value]
    said = [taken, *against, *([f"For it: {'; '.join(for_it)}."] if for_it else [])]
    if alike:
        said.append(
            f"The path alone cannot tell it from {', '.join(alike)}: if the drawing goes or turns another way "
            "than was recorded, try these; a path of a left-handed program (Unity, Unreal) is mirrored, which "
            "no path shows."
        )
    return " ".join(said)


def _compared(path: CameraPath) -> dict[str, _Other]:
    """Compare the path's convention with each different one, on every fourth pose."""
    assert path.origin is not None
    read = CONVENTIONS[path.origin.convention]
    c2w = path.c2w[::4]
    others = {
        name: each
        for name, each in CONVENTIONS.items()
        if not each.by_column and (each.camera_to_world, each.opengl_axes) != (read.camera_to_world, read.opengl_axes)
    }
    z_up = path.origin.format in Z_IS_UP
    return {name: _against(c2w, read_otherwise(c2w, read, each), name, z_up) for name, each in others.items()}


def _against(read: np.ndarray, other: np.ndarray, name: str, z_up: bool) -> _Other:
    """Compare poses [f, 4, 4] as they were `read` with the same poses under another convention."""
    mine, yours = (_signs(each, z_up) for each in (read, other))
    sense = next((sign.value for sign in yours.values() if abs(sign.value) > SENSE), 0.0)
    lengths = [float(np.linalg.norm(np.diff(each[:, :3, 3], axis=0), axis=1).sum()) for each in (read, other)]
    if lengths[1] > LONGER * lengths[0]:
        return _Other(1, f"read as {name} the camera would go {_times(lengths[1], lengths[0])} as far", sense)
    if lengths[0] > LONGER * lengths[1] and not mine["meets"].value > SENSE:
        return _Other(-1, f"The camera goes {_times(*lengths)} as far as it would read as {name}.", 2 + sense)
    for sign, theirs in zip(mine.values(), yours.values(), strict=True):
        if sign.value - theirs.value > APART and sign.value > SENSE:
            return _Other(1, sign.yes, sense)
        if theirs.value - sign.value > APART and theirs.value > SENSE:
            why = f"The camera {sign.no}; read as {name} it {sign.yes.removeprefix('it ')}."
            return _Other(-1, why, sense)
    return _Other(0, "", sense)


def _times(more: float, less: float) -> str:
    times = more / less if less > 1e-3 * more else 0
    return f"{times:.0f} times" if times else "more than a thousand times"


def _signs(c2w: np.ndarray, z_up: bool) -> dict[str, _Sign]:
    """Score poses [f, 4, 4]: the camera stands upright, moves where it looks, and looks at what it goes around."""
    steps = framewise_relative(c2w)[1:, :3, 3]
    gone = float(np.linalg.norm(steps, axis=1).sum())
    ahead = float(steps[:, 2].sum()) / gone if gone else 0.0
    upright = float(-c2w[:, 2, 1].mean()) if z_up else 0.0
    return {
        "upright": _Sign(upright, "it stands upright in a world whose z axis is up", "stands on its head"),
        "ahead": _Sign(ahead, "it goes where it looks", "goes backwards for most of its way"),
        "meets": _Sign(_meets(c2w), "it looks at what it goes round", "looks away from what it goes round"),
    }


def _meets(c2w: np.ndarray) -> float:
    """Return 1 if all views meet at a point in front of the cameras, -1 for a point behind them, 0 without a point."""
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
    """Return a message on how the model's input scales the file's units and speed."""
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
