"""Preset camera moves under their film names, in the axes of the first frame (x right, y down, z forward).

A pan, tilt or roll rotates the camera on the spot. A dolly, truck or pedestal moves the camera without rotation. An
orbit, arc, crane or spiral moves the camera and keeps a point in view.
"""

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

    unit: the unit of the amount, world units or degrees.
    amount: the default amount.
    move: a function `move(progress, amount, subject)` that returns the camera-to-world poses [n, 4, 4] at `progress`
    [n] from 0 to 1. `subject` [3] is the point that an orbit, arc, crane or spiral keeps in view.
    """

    description: str
    unit: str
    amount: float
    move: Move

    @property
    def note(self) -> str:
        """A note for the user that at constant speed the amount of the move has no effect, because the model's input is
        scaled to a longest step of 1. Moves in world units have this note. It is empty for "static" and for moves in
        degrees."""
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
    """Return the path of a preset move over `frames` frames (rounded down to 4n+1), beginning at the identity.

    amount: the size of the move in the preset's unit (None: its default).
    easing: a name in EASINGS.
    fov_deg: the horizontal field of view in degrees.
    radius: the distance in world units to the point straight ahead that orbits and cranes keep in view.
    shake: the size in degrees of an added random handheld shake.
    seed: the random seed of the shake.

    Raises CameraError for an unknown `name` or `easing`, and for numbers out of range.
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
    """Return the path with a random handheld shake, which rotates the camera by at most `degrees` about each axis. With
    0 degrees the path is returned unchanged.

    The first frame is unchanged. A shaken path has no actions (W, A, S, D flags) and no `origin` (its file). The shake
    only rotates: the model's input is scaled to a longest step of 1, so in a slow path small translations would be
    enlarged.
    """
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
    """Return camera-to-world poses [n, 4, 4] at `positions` [n, 3] that look at `target` [3] with a level horizon. The
    camera's axes are x right, y down, z forward, and the world's y axis points down. A camera that looks straight up or
    down has no level horizon and is not supported."""
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
    return lambda u, amount, subject: _from_first(look_at(amount * u[:, None] * rise, subject))


def _spiral(u: np.ndarray, amount: float, subject: np.ndarray) -> np.ndarray:
    """Return the poses [n, 4, 4] of an orbit around `subject` [3] by `amount` degrees. `u` [n]: the progress, from 0 to
    1. During the move, the distance to the subject falls to half of the initial distance, and the camera rises by a
    quarter of the initial distance."""
    away = from_angles("Y", -amount * u) @ -subject
    lift = 0.25 * np.linalg.norm(subject) * u[:, None] * np.array([0.0, -1.0, 0.0])
    return _from_first(look_at(subject + away * (1 - 0.5 * u[:, None]) + lift, subject))


def _figure_eight(u: np.ndarray, amount: float, _subject: np.ndarray) -> np.ndarray:
    angle = 2 * np.pi * u
    return rigid(np.eye(3), amount * np.stack([np.sin(angle), np.sin(2 * angle) / 2, np.zeros_like(u)], -1))


def _from_first(c2w: np.ndarray) -> np.ndarray:
    """Turn all cameras so that the first one looks straight ahead, in place, and return `c2w` [n, 4, 4]. Each rotation
    R becomes R @ R0^-1, where R0 is the first rotation. This is the rotation from the first camera to the camera in
    world axes. A multiplication from the left would give it in the first camera's axes, while the positions stay in
    world axes."""
    c2w[:, :3, :3] = c2w[:, :3, :3] @ c2w[0, :3, :3].T
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
