"""Preset camera moves under their film names, in the axes of the first frame (x right, y down, z forward)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...errors import CameraError
from ...options import FRAMES
from ..easing import apply_easing
from ..path import DEFAULT_FOV_DEG, MOST_FRAMES, CameraPath, lens_from_fov
from ..poses import frame_count
from ..rotation import from_angles, rigid, unit

UNITS, DEGREES = "world units", "degrees"
DEFAULT_RADIUS = 4.0
STEADY_NOTE = (
    "The model divides every step by the longest one, so the amount of a steady move on its own cancels: 1 unit and "
    "10 units are the same input. It counts against other moves in the same path, against turns, and where easing "
    "makes some steps longer than others."
)

Move = Callable[[np.ndarray, float, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Preset:
    """A preset camera move.

    unit: the unit of `amount`, world units or degrees.
    amount: the default size of the move.
    move: move(progress [n] from 0 to 1, amount, subject's position [3]) returns camera-to-world poses [n, 4, 4].
    """

    description: str
    unit: str
    amount: float
    move: Move

    @property
    def note(self) -> str:
        """A note for moves with an amount in world units: the model sees only ratios between a path's steps. It is ""
        if `amount` is in degrees or 0."""
        return STEADY_NOTE if self.unit == UNITS and self.amount else ""


def preset_path(
    name: str,
    *,
    frames: int = FRAMES,
    amount: float | None = None,
    easing: str = "linear",
    fov_deg: float = DEFAULT_FOV_DEG,
    radius: float = DEFAULT_RADIUS,
    shake: float = 0.0,
    seed: int = 0,
) -> CameraPath:
    """Return the path of a preset move, beginning at the identity. Raise CameraError for an unknown name or a number
    out of range.

    frames: rounded down to 4n + 1.
    amount: in the preset's unit, by default `Preset.amount`.
    easing: a name in EASINGS.
    fov_deg: the horizontal field of view.
    radius: the distance of the subject, straight ahead of the first camera; the radius of orbits.
    shake: the maximum random rotation about an axis, in degrees.
    """
    if name not in PRESETS:
        raise CameraError(f"camera preset {name!r}: expected one of {', '.join(PRESETS)}")
    preset = PRESETS[name]
    amount = preset.amount if amount is None else amount
    if not np.isfinite([amount, shake, radius]).all() or abs(radius) < 1e-6:
        raise CameraError(f"camera preset {name}: amount, shake and the point looked at must be finite, radius not 0")
    if frames > MOST_FRAMES:
        raise CameraError(f"camera preset {name}: {frames} frames, expected 1 to {MOST_FRAMES}")
    time = np.linspace(0, 1, frame_count(frames))
    if name == "handheld":
        amount, shake = 0.0, amount + shake
    c2w = preset.move(apply_easing(easing, time), amount, np.array((0.0, 0.0, radius)))
    return shake_path(CameraPath(c2w, lens_from_fov(fov_deg)), shake, seed)


def shake_path(path: CameraPath, degrees: float, seed: int = 0) -> CameraPath:
    """Return the path with a random handheld shake of at most `degrees` about each axis. Unless `degrees` is 0, the
    result has no actions and no `origin`."""
    if degrees == 0:
        return path
    seconds = np.arange(len(path)) / path.fps
    random = np.random.default_rng(seed)
    waves = random.uniform(0.3, 2.5, (3, 5, 1)), random.uniform(0, 2 * np.pi, (3, 5, 1))
    sway = (np.sin(2 * np.pi * waves[0] * seconds + waves[1]) / waves[0]).sum(1)
    sway -= sway[:, :1]
    sway *= degrees / max(np.abs(sway).max(), 1e-9)
    c2w = path.c2w.copy()
    c2w[:, :3, :3] = path.rotations @ from_angles("YXZ", (sway * [[1], [1], [0.3]]).T)
    return CameraPath(c2w, path.intrinsics, path.fps)


def look_at(positions: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return camera-to-world poses [n, 4, 4], in OpenCV axes, at `positions` [n, 3]. They look at `target` [3] with a
    level horizon. The result is invalid for views straight up or down."""
    forward = unit(target - positions)
    right = unit(np.cross([0.0, 1.0, 0.0], forward))
    return rigid(np.stack([right, np.cross(forward, right), forward], -1), positions)


def _travel(*direction: float) -> Move:
    return lambda u, amount, _subject: rigid(np.eye(3), amount * u[:, None] * np.array(direction))


def _turn(axis: str, sign: float) -> Move:
    return lambda u, amount, _subject: rigid(from_angles(axis, sign * amount * u), np.zeros((len(u), 3)))


def _swing(axis: str, sign: float) -> Move:
    def move(u: np.ndarray, amount: float, subject: np.ndarray) -> np.ndarray:
        rotations = from_angles(axis, sign * amount * u)
        return rigid(rotations, subject - rotations @ subject)

    return move


def _crane(sign: float) -> Move:
    rise = np.array([0.0, sign, 0.0])
    return lambda u, amount, subject: _align_to_first(look_at(amount * u[:, None] * rise, subject))


def _spiral(u: np.ndarray, amount: float, subject: np.ndarray) -> np.ndarray:
    """Return poses [n, 4, 4] that orbit `subject` [3] by `amount` degrees, halve the distance, and rise by a quarter of
    the initial distance. `u`: the progress [n], 0 to 1."""
    away = from_angles("Y", -amount * u) @ -subject
    lift = 0.25 * np.linalg.norm(subject) * u[:, None] * np.array([0.0, -1.0, 0.0])
    return _align_to_first(look_at(subject + away * (1 - 0.5 * u[:, None]) + lift, subject))


def _figure_eight(u: np.ndarray, amount: float, _subject: np.ndarray) -> np.ndarray:
    angle = 2 * np.pi * u
    return rigid(np.eye(3), amount * np.stack([np.sin(angle), np.sin(2 * angle) / 2, np.zeros_like(u)], -1))


def _align_to_first(c2w: np.ndarray) -> np.ndarray:
    """Multiply the rotations in place by the inverse of the first, from the right. The first becomes the identity.
    Positions stay, and so do rotations between poses in world axes. Return `c2w`."""
    c2w[:, :3, :3] = c2w[:, :3, :3] @ c2w[0, :3, :3].T  # from the right: world axes, as of the positions
    return c2w


PRESETS: dict[str, Preset] = {
    "static": Preset("The camera stands still.", UNITS, 0, _travel(0, 0, 0)),
    "dolly_in": Preset("The camera moves forward; things ahead grow.", UNITS, 2, _travel(0, 0, 1)),
    "dolly_out": Preset("The camera moves back; things ahead shrink.", UNITS, 2, _travel(0, 0, -1)),
    "truck_left": Preset("The camera slides left; the image moves right.", UNITS, 2, _travel(-1, 0, 0)),
    "truck_right": Preset("The camera slides right; the image moves left.", UNITS, 2, _travel(1, 0, 0)),
    "pedestal_up": Preset("The camera rises; the image moves down.", UNITS, 2, _travel(0, -1, 0)),
    "pedestal_down": Preset("The camera sinks; the image moves up.", UNITS, 2, _travel(0, 1, 0)),
    "pan_left": Preset("The camera turns left on the spot.", DEGREES, 45, _turn("Y", -1)),
    "pan_right": Preset("The camera turns right on the spot.", DEGREES, 45, _turn("Y", 1)),
    "tilt_up": Preset("The camera looks up on the spot.", DEGREES, 25, _turn("X", 1)),
    "tilt_down": Preset("The camera looks down on the spot.", DEGREES, 25, _turn("X", -1)),
    "roll_clockwise": Preset("The camera rolls clockwise; the image turns back.", DEGREES, 30, _turn("Z", 1)),
    "roll_counterclockwise": Preset(
        "The camera rolls counterclockwise; the image turns clockwise.", DEGREES, 30, _turn("Z", -1)
    ),
    "orbit_left": Preset("Round the subject to its left side, facing it.", DEGREES, 90, _swing("Y", 1)),
    "orbit_right": Preset("Round the subject to its right side, facing it.", DEGREES, 90, _swing("Y", -1)),
    "arc_left": Preset("A short swing to the left round the subject.", DEGREES, 30, _swing("Y", 1)),
    "arc_right": Preset("A short swing to the right round the subject.", DEGREES, 30, _swing("Y", -1)),
    "arc_over": Preset("A swing up and over the subject, looking down on it.", DEGREES, 40, _swing("X", -1)),
    "crane_up": Preset("The camera rises and tilts down to keep the subject in view.", UNITS, 2, _crane(-1)),
    "crane_down": Preset("The camera sinks and tilts up to keep the subject in view.", UNITS, 2, _crane(1)),
    "spiral": Preset("Round the subject to the right, closing in and rising.", DEGREES, 180, _spiral),
    "figure_eight": Preset("A figure eight across the image, ending where it began.", UNITS, 1, _figure_eight),
    "handheld": Preset("The camera is held by hand: a seeded shake of turns.", DEGREES, 1.5, _travel(0, 0, 0)),
}
