"""How well a video follows a camera path: each pair of keyframes against the poses, the errors of all, a verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..camera.path import CameraPath
from ..camera.plucker import stillness
from ..camera.rotation import angle_deg, inverse, rigid, unit
from ..errors import CameraError
from .found import FEWEST_TRACKS, VideoCamera, find_camera

EVERY = 8
"""Frames from one keyframe of a pair to the other."""
MOVING = 0.25
"""A pair is to go somewhere if its step is that share of the path's longest."""
TURN_DEG, TURN_SHARE, DIRECTION_DEG = 1.0, 1 / 3, 30.0
"""A pair follows if its turn is at most that far off, in degrees or as a share of the turn asked for, and so is its
direction. A camera that stands still is off by the whole turn, one that goes the other way by 180 degrees."""
UNASKED_PARALLAX, UNASKED_SHARE = 0.5, 0.25
"""Where the path only turns, the parallax up to which a pair follows: pixels of the tracked pictures, or a share of the
turn in pixels, because a lens other than the path's looks like a little parallax."""
ALIKE = 3.0
"""A pair that is at fault is not judged if the path's own motion leaves at most that many times of its points what the
motion that was found does: they fit both."""
FOLLOWING = 0.75
"""Share of the pairs in which a motion was found that has to follow."""


@dataclass(frozen=True)
class Pair:
    """Two keyframes, frames `first` and `last`: the path's second pose as the first one's camera sees it, `asked`
    [4, 4], whether it `goes` far enough there to judge the direction, the points that both see, `tracks`, and the pose
    `found` [4, 4] (None: the camera was not found; its unit is the mapper's), with its `parallax` in pixels and the
    lens, `focal`. `left` is what that motion leaves of the points in pixels, `asked_left` what the path's does."""

    first: int
    last: int
    asked: np.ndarray
    goes: bool
    tracks: int
    found: np.ndarray | None
    parallax: float
    focal: float
    left: float
    asked_left: float

    @property
    def turn_asked_deg(self) -> float:
        return float(angle_deg(self.asked[None, :3, :3])[0])

    @property
    def turn_found_deg(self) -> float:
        """NaN where nothing was found."""
        return np.nan if self.found is None else float(angle_deg(self.found[None, :3, :3])[0])

    @property
    def turn_error_deg(self) -> float:
        """Degrees between the rotation that was found and the path's; NaN where nothing was found."""
        if self.found is None:
            return np.nan
        return float(angle_deg((self.asked[:3, :3].T @ self.found[:3, :3])[None])[0])

    @property
    def direction_error_deg(self) -> float:
        """Degrees between the direction that was found and the path's; NaN where it is not judged."""
        if not self.goes or self.found is None or not self.found[:3, 3].any():
            return np.nan
        cosine = unit(self.asked[:3, 3]) @ unit(self.found[:3, 3])
        return float(np.rad2deg(np.arccos(np.clip(cosine, -1, 1))))

    @property
    def fault(self) -> str:
        """In what the pair does not follow, in words; empty where it follows or nothing was found."""
        if self.found is None:
            return ""
        if self.turn_error_deg > max(TURN_DEG, TURN_SHARE * self.turn_asked_deg):
            return "turns otherwise"
        if not self.goes:
            turn = np.deg2rad(self.turn_asked_deg) * self.focal
            unasked = self.found[:3, 3].any() and self.parallax > max(UNASKED_PARALLAX, UNASKED_SHARE * turn)
            return "moves, and is not to" if unasked else ""
        if not self.found[:3, 3].any():
            return "no parallax: stands, or all is far away"
        return "goes elsewhere" if self.direction_error_deg > DIRECTION_DEG else ""

    @property
    def fits_both(self) -> bool:
        """Whether the motion that was found is at fault, but the points fit the path's own motion about as well."""
        if not self.fault or self.found is None or (self.goes and not self.found[:3, 3].any()):
            return False  # points of a camera that stands still fit every direction
        return self.asked_left <= ALIKE * self.left and not self.direction_error_deg > 90

    @property
    def note(self) -> str:
        """What to say of the pair: its fault, or why it was not judged; mostly empty."""
        if self.found is not None:
            return "cannot be told, the path fits the tracks about as well" if self.fits_both else self.fault
        few = f"fewer than {FEWEST_TRACKS} tracks"
        return few if self.tracks < FEWEST_TRACKS else "the tracks agree on no motion"


@dataclass(frozen=True)
class Measurement:
    """What was found in a video along `path`: its pairs of keyframes and its `camera`."""

    path: CameraPath
    pairs: tuple[Pair, ...]
    camera: VideoCamera

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

    @cached_property
    def poses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers [m] of the frames whose camera was found; the path's poses there and the found ones [m, 4, 4], both
        seen from the first, the found ones in the path's unit (the scale that fits best)."""
        known = self.camera.registered
        frames = self.camera.tracks.frames[known]
        if not len(frames):
            return frames, np.empty((0, 4, 4)), np.empty((0, 4, 4))
        asked, found = (inverse(c2w[0]) @ c2w for c2w in (self.path.c2w[frames], self.camera.c2w[known]))
        length = float((found[:, :3, 3] ** 2).sum())
        found[:, :3, 3] *= max(float((asked[:, :3, 3] * found[:, :3, 3]).sum()), 0.0) / length if length else 1.0
        return frames, asked, found

    @cached_property
    def rotation_errors_deg(self) -> np.ndarray:
        """RotErr of each such frame [m], degrees: the angle of found rotation and path's, both from the first. As in
        CamI2V's evaluation/glomap_evaluation.py, whose figure is the sum in radians."""
        _, asked, found = self.poses
        return angle_deg(np.swapaxes(asked[:, :3, :3], 1, 2) @ found[:, :3, :3]) if len(asked) else np.empty(0)

    @cached_property
    def translation_errors(self) -> np.ndarray:
        """TransErr of each such frame [m], world units of the path: the distance of found position and path's."""
        _, asked, found = self.poses
        return np.linalg.norm(asked[:, :3, 3] - found[:, :3, 3], axis=1)


def median_errors_deg(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Of turn and direction; NaN where none was judged."""
    errors = np.array([(pair.turn_error_deg, pair.direction_error_deg) for pair in pairs]).reshape(-1, 2).T
    turn, direction = (float(np.median(known)) if len(known := each[~np.isnan(each)]) else np.nan for each in errors)
    return turn, direction


def measure_camera(frames: Iterable[np.ndarray], path: CameraPath, every: int | None = None) -> Measurement:
    """How well a video follows `path`, whose first poses are those of its `frames`, uint8 [H, W] each and read once.

    The keyframes of a pair are `every` frames apart, None: 8. The lens is the path's first one, scaled to the pictures
    as `generate` does. Raises CameraError for a video of one frame, of more frames than poses or of frames of several
    sizes, and for `every` below 1; DependencyError without OpenCV or pycolmap.
    """
    if every is not None and every < 1:
        raise CameraError(f"keyframes every {every} frames: expected at least 1")

    def no_more_than_poses() -> Iterable[np.ndarray]:
        for number, frame in enumerate(frames):
            if number == len(path):
                raise CameraError(
                    f"the video has more frames than the path has poses, {len(path)}: give the path that "
                    "it was made with"
                )
            yield frame

    return compared(find_camera(no_more_than_poses(), path.intrinsics[0], every), path, every or EVERY)


def compared(camera: VideoCamera, path: CameraPath, every: int = EVERY) -> Measurement:
    """A camera that was found against a path of at least as many frames."""
    keys = camera.tracks.frames
    starts = range(0, keys[-1], every)
    chosen = np.unique([np.abs(keys - frame).argmin() for frame in (*starts, keys[-1])])
    ends = zip(chosen[:-1], chosen[1:], strict=True)
    steps = np.linalg.norm(np.diff(path.positions[keys[chosen]], axis=0), axis=1)
    least = max(MOVING * float(steps.max()), stillness(path.c2w))
    return Measurement(path, tuple(_pair(camera, path, first, last, least) for first, last in ends), camera)


def _pair(camera: VideoCamera, path: CameraPath, first: int, last: int, least: float) -> Pair:
    """Keyframes number `first` and `last`; it goes if the path's step is longer than `least`."""
    frames = camera.tracks.frames
    asked = inverse(path.c2w[frames[first]]) @ path.c2w[frames[last]]
    goes = bool(np.linalg.norm(asked[:3, 3]) > least)
    tracks = int(camera.tracks.both(first, last).sum())
    found, figures = None, (0.0, camera.focal, 0.0, 0.0)
    if tracks and camera.registered[[first, last]].all():
        found = inverse(camera.c2w[first]) @ camera.c2w[last]
        wanted = asked if goes else rigid(asked[:3, :3], np.zeros((1, 3)))[0]
        left = [camera.left(first, last, motion) for motion in (found, wanted)]
        figures = camera.parallax(first, last), camera.focal, left[0], left[1]
    return Pair(int(frames[first]), int(frames[last]), asked, goes, tracks, found, *figures)
