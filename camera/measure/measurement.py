"""How well a video follows its camera path: each pair of keyframes against the poses, and the verdict on all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import CameraError
from ..path import CameraPath
from ..plucker import scaled_intrinsics, stillness
from ..rotation import angle_deg, inverse, unit
from .motion import FEWEST_TRACKS, Asked, Motion, find_motion
from .room import render_room
from .tracks import follow, opencv

SPACINGS = (8, 4, 2, 1)
"""Frames from one keyframe to the next: the first of these in which the path turns by at most FASTEST_TURN_DEG."""
FASTEST_TURN_DEG = 15.0
FLOOR_PAIRS, STEPS_AWAY = 5, 16.0
"""Pairs that are rendered to measure the noise floor, spread over the path, and how far away the walls of their rooms
are, in steps from one keyframe to the next."""
MOVING = 0.25
"""A pair is to go somewhere if its step is that share of the path's longest."""

TURN_DEG, TURN_SHARE, DIRECTION_DEG = 1.0, 1 / 3, 30.0
"""A pair follows if its turn is at most that far off, in degrees or as a share of the turn asked for, and so is its
direction. A camera that stands still is off by the whole turn, one that goes the other way by 180 degrees."""
UNASKED_PARALLAX, UNASKED_SHARE = 1.0, 0.5
"""Where the path only turns, the parallax up to which a pair follows: pixels of a picture 832 wide, or a share of the
turn in pixels, because a lens other than the path's looks like a little parallax."""
ALIKE = 3.0
"""A pair that is at fault is not judged if the path's own motion leaves at most that many times of its tracks what the
motion that was found does: they fit both. On rendered truth it is mostly 0.5 to 2 times, for other paths 7 or more."""
FOLLOWING = 0.75
"""Share of the pairs in which a motion was found that has to follow."""


@dataclass(frozen=True)
class Pair:
    """Two keyframes, frames `first` and `last`: the path's second pose as the first one's camera sees it, `asked`
    [4, 4], whether it `goes` far enough there to judge the direction, the number of `tracks` and the motion `found`.

    `focal` is the lens in pixels and `width` the picture's."""

    first: int
    last: int
    asked: np.ndarray
    goes: bool
    tracks: int
    found: Motion | None
    focal: float
    width: int

    @property
    def turn_asked_deg(self) -> float:
        return float(angle_deg(self.asked[None, :3, :3])[0])

    @property
    def turn_found_deg(self) -> float:
        """NaN where nothing was found."""
        return np.nan if self.found is None else float(angle_deg(self.found.rotation[None])[0])

    @property
    def turn_error_deg(self) -> float:
        """Degrees between the rotation that was found and the path's; NaN where nothing was found."""
        if self.found is None:
            return np.nan
        return float(angle_deg((self.asked[:3, :3].T @ self.found.rotation)[None])[0])

    @property
    def direction_error_deg(self) -> float:
        """Degrees between the direction that was found and the path's; NaN where it is not judged."""
        if not self.goes or self.found is None or self.found.direction is None:
            return np.nan
        cosine = self.asked[:3, 3] @ self.found.direction / np.linalg.norm(self.asked[:3, 3])
        return float(np.rad2deg(np.arccos(np.clip(cosine, -1, 1))))

    @property
    def fault(self) -> str:
        """In what the pair does not follow, in words; empty where it follows or nothing was found."""
        if self.found is None:
            return ""
        if self.turn_error_deg > max(TURN_DEG, TURN_SHARE * self.turn_asked_deg):
            return "turns otherwise"
        if not self.goes:
            return "moves, and is not to" if self._moves_unasked() else ""
        if self.found.direction is None:
            return "no parallax: stands, or all is far away"
        return "goes elsewhere" if self.direction_error_deg > DIRECTION_DEG else ""

    @property
    def fits_both(self) -> bool:
        """Whether the motion that was found is at fault, but the tracks fit the path's own motion about as well."""
        if not self.fault or self.found is None or (self.goes and self.found.direction is None):
            return False  # tracks of a camera that stands still fit every direction
        return self.found.asked_left <= ALIKE * self.found.left

    @property
    def note(self) -> str:
        """What to say of the pair: its fault, or why it was not judged; mostly empty."""
        if self.found is not None:
            return "cannot be told, the path fits the tracks about as well" if self.fits_both else self.fault
        few = f"fewer than {FEWEST_TRACKS} tracks"
        return few if self.tracks < FEWEST_TRACKS else "the tracks agree on no motion"

    def _moves_unasked(self) -> bool:
        assert self.found is not None
        least = max(UNASKED_PARALLAX * self.width / 832, UNASKED_PARALLAX / 3)
        turn = np.deg2rad(self.turn_asked_deg) * self.focal
        return self.found.direction is not None and self.found.parallax > max(least, UNASKED_SHARE * turn)


@dataclass(frozen=True)
class Measurement:
    """What was found in a video along `path`: its pairs of keyframes, number of frames and size. `floor` are pairs of
    the same path measured on rendered pictures."""

    path: CameraPath
    pairs: tuple[Pair, ...]
    floor: tuple[Pair, ...]
    frames: int
    height: int
    width: int

    @cached_property
    def found(self) -> tuple[Pair, ...]:
        """The pairs in which a motion was found."""
        return tuple(pair for pair in self.pairs if pair.found is not None)

    @cached_property
    def judged(self) -> tuple[Pair, ...]:
        """Those of them that can be told to follow or not."""
        return tuple(pair for pair in self.found if not pair.fits_both)

    @property
    def following(self) -> int:
        """How many of the judged pairs follow."""
        return sum(not pair.fault for pair in self.judged)

    @property
    def follows(self) -> bool | None:
        """Whether the video follows its path; None where a motion was found in fewer than half of the pairs, and where
        that depends on those that cannot be told."""
        if 2 * len(self.found) < len(self.pairs):
            return None
        least, most = self.following, len(self.found) - len(self.judged) + self.following
        enough = FOLLOWING * len(self.found)
        return True if least >= enough else False if most < enough else None


def median_turn_error_deg(pairs: Sequence[Pair]) -> float:
    """NaN where none was judged."""
    return _median([pair.turn_error_deg for pair in pairs])


def median_direction_error_deg(pairs: Sequence[Pair]) -> float:
    """NaN where none was judged."""
    return _median([pair.direction_error_deg for pair in pairs])


def _median(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.median(known)) if known else np.nan


def measure_camera(frames: Iterable[np.ndarray], path: CameraPath, every: int | None = None) -> Measurement:
    """How well a video follows `path`, whose first poses are those of its `frames`, uint8 [H, W] each and read once.

    Keyframes are `every` frames apart; None: 8, or fewer where the path turns fast. The lens is the path's first one,
    scaled to the pictures as `generate` does. Raises CameraError for a video of one frame, of more frames than poses or
    of frames of several sizes, and for `every` below 1; DependencyError without OpenCV.
    """
    opencv()
    if every is not None and every < 1:
        raise CameraError(f"keyframes every {every} frames: expected at least 1")
    steps = every or _spacing(path)
    pairs: list[Pair] = []
    window: list[np.ndarray] = []
    count = 0
    for count, frame in enumerate(frames, 1):
        _check(frame, count, window, path)
        window.append(frame)
        if len(window) > steps:
            pairs.append(_pair(path, count - len(window), window, steps))
            window = window[-1:]
    if len(window) > max(1, steps // 2):  # what is left over
        pairs.append(_pair(path, count - len(window), window, steps))
    if not pairs:
        raise CameraError(f"a video of {count} frames: at least 2, and {steps // 2 + 1} for keyframes every {steps}")
    height, width = window[-1].shape
    return Measurement(path, tuple(pairs), _floor(path, pairs, height, width, steps), count, height, width)


def _check(frame: np.ndarray, count: int, window: list[np.ndarray], path: CameraPath) -> None:
    if count > len(path):
        raise CameraError(
            f"the video has more frames than the path has poses, {len(path)}: give the path that it was made with"
        )
    if window and frame.shape != window[-1].shape:
        sizes = [f"{each.shape[1]}x{each.shape[0]}" for each in (frame, window[-1])]
        raise CameraError(f"frame {count - 1} is {sizes[0]}, the one before {sizes[1]}: expected one size")


def _spacing(path: CameraPath) -> int:
    turns = [_turns_deg(path, steps).max(initial=0) for steps in SPACINGS]
    return next((steps for steps, turn in zip(SPACINGS, turns, strict=True) if turn <= FASTEST_TURN_DEG), 1)


def _turns_deg(path: CameraPath, steps: int) -> np.ndarray:
    before, after = path.rotations[:-steps], path.rotations[steps:]
    return angle_deg(np.swapaxes(before, 1, 2) @ after) if len(before) else np.zeros(0)


def _pair(path: CameraPath, first: int, frames: Sequence[np.ndarray], steps: int) -> Pair:
    """The pair of the first and the last of `frames`, the first of which is the path's pose `first`."""
    last = first + len(frames) - 1
    height, width = frames[0].shape
    lens = scaled_intrinsics(path.intrinsics, height, width)
    asked = inverse(path.c2w[first]) @ path.c2w[last]
    began, ended = follow(frames)
    goes = np.linalg.norm(asked[:3, 3]) > max(MOVING * _longest_step(path, steps), stillness(path.c2w))
    wanted = Asked(asked[:3, :3], unit(asked[:3, 3]) if goes else None)
    found = find_motion(began, ended, lens, width, wanted)
    return Pair(first, last, asked, bool(goes), len(began), found, float(np.sqrt(lens[0] * lens[1])), width)


def _longest_step(path: CameraPath, steps: int) -> float:
    """World units that the path goes at most in `steps` frames."""
    return float(np.linalg.norm(path.positions[steps:] - path.positions[:-steps], axis=1).max(initial=0))


def _floor(path: CameraPath, pairs: list[Pair], height: int, width: int, steps: int) -> tuple[Pair, ...]:
    """The same pairs, or some of them, of rendered pictures."""
    chosen = np.unique(np.linspace(0, len(pairs) - 1, FLOOR_PAIRS).round().astype(int))
    lens = scaled_intrinsics(path.intrinsics, height, width)
    measured = []
    for pair in (pairs[index] for index in chosen):
        poses = path.c2w[pair.first : pair.last + 1]
        reach = STEPS_AWAY * float(np.linalg.norm(pair.asked[:3, 3])) if pair.goes else 1.0
        measured.append(_pair(path, pair.first, render_room(poses, lens, height, width, reach), steps))
    return tuple(measured)
