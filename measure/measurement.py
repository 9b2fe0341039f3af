"""Measurement of how well a generated video follows a camera path.

The camera motion between pairs of keyframes is estimated from the video and compared with the path's motion. The
verdict states whether the video follows the path.
"""

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
"""The default distance, in frames, between the two keyframes of each pair that is compared."""
MOVING = 0.25
"""The smallest motion for which the direction of motion is judged: the path's step between a pair of keyframes, as a
fraction of the longest such step of the path."""
TURN_DEG, TURN_SHARE, DIRECTION_DEG = 1.0, 1 / 3, 30.0
"""The largest accepted errors of a pair of keyframes.

The rotation error may be TURN_DEG degrees, or the fraction TURN_SHARE of the path's rotation if this is larger. The
direction error may be DIRECTION_DEG degrees. A camera that does not rotate has the path's full rotation as rotation
error. A camera that moves backwards has a direction error of 180 degrees.
"""
UNASKED_PARALLAX, UNASKED_SHARE = 0.5, 0.25
"""The largest accepted parallax of a pair of keyframes between which the path only rotates. With more parallax, the
camera counts as moving.

The limit is UNASKED_PARALLAX pixels of the tracked frames, or UNASKED_SHARE times the rotation in pixels if this is
larger. The rotation in pixels is its angle in radians times the focal length. UNASKED_SHARE allows for a lens that
differs from the path's, because such a lens looks like a small parallax.
"""
ALIKE = 3.0
"""The threshold for ambiguous pairs of keyframes, which are not judged.

A pair with a fault is ambiguous if the path's motion fits the tracked points almost as well as the measured motion. Its
residual must be at most ALIKE times the residual of the measured motion.
"""
FOLLOWING = 0.75
"""The threshold of the verdict `Measurement.follows`. A video follows its path if at least this fraction of its
keyframe pairs has no fault (see `Pair.fault`). Pairs without a measured motion are not counted."""


@dataclass(frozen=True)
class Pair:
    """A pair of keyframes: the camera's motion between them in the video, compared with the path's motion.

    first, last: the frame numbers of the keyframes.
    asked: [4, 4], the pose of `last` relative to `first` on the path.
    goes: whether the path's translation is long enough to judge the direction.
    tracks: the number of points visible in both frames.
    found: [4, 4], the measured relative pose in an arbitrary unit of length; None if no camera was found.
    parallax: the measured parallax, in pixels of the tracked frames; 0 without `found`.
    focal: the focal length, in pixels of the tracked frames.
    left: the residual of the tracked points under the measured motion, in pixels; 0 without `found`.
    asked_left: the residual under the path's motion, in pixels; 0 without `found`. If `goes` is False, the path's
    translation is left out.
    """

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
        """The angle of the measured rotation, in degrees; NaN if no motion was found."""
        return np.nan if self.found is None else float(angle_deg(self.found[None, :3, :3])[0])

    @property
    def turn_error_deg(self) -> float:
        """The angle between the measured rotation and the path's, in degrees; NaN if no motion was found."""
        if self.found is None:
            return np.nan
        return float(angle_deg((self.asked[:3, :3].T @ self.found[:3, :3])[None])[0])

    @property
    def direction_error_deg(self) -> float:
        """The angle between the measured direction of motion and the path's, in degrees; NaN if the direction is not
        judged."""
        if not self.goes or self.found is None or not self.found[:3, 3].any():
            return np.nan
        cosine = unit(self.asked[:3, 3]) @ unit(self.found[:3, 3])
        return float(np.rad2deg(np.arccos(np.clip(cosine, -1, 1))))

    @property
    def fault(self) -> str:
        """A message on how the measured motion differs from the path's motion. It is empty if the motions agree or no
        motion was found."""
        if self.found is None:
            return ""
        if self.turn_error_deg > max(TURN_DEG, TURN_SHARE * self.turn_asked_deg):
            return "turns otherwise"
        if not self.goes:
            turn = np.deg2rad(self.turn_asked_deg) * self.focal
            unasked = self.found[:3, 3].any() and self.parallax > max(UNASKED_PARALLAX, UNASKED_SHARE * turn)
            return "moves, and is not to" if unasked else ""
        if not self.found[:3, 3].any():
            return "no parallax: the camera stands still, or everything is far away"
        return "goes elsewhere" if self.direction_error_deg > DIRECTION_DEG else ""

    @property
    def fits_both(self) -> bool:
        """Whether the pair is ambiguous: the measured motion has a fault, but the path's motion fits the tracked points
        almost as well (see ALIKE).

        A pair is not ambiguous if the directions of the two motions differ by more than 90 degrees, or if the path
        moves but the measured camera stands still.
        """
        if not self.fault or self.found is None or (self.goes and not self.found[:3, 3].any()):
            return False  # the points of a still camera fit every direction
        return self.asked_left <= ALIKE * self.left and not self.direction_error_deg > 90

    @property
    def note(self) -> str:
        """A message with the pair's fault, or with the reason why the pair was not judged; usually empty."""
        if self.found is not None:
            return "undecided: the path fits the tracks about as well" if self.fits_both else self.fault
        few = f"fewer than {FEWEST_TRACKS} tracks"
        return few if self.tracks < FEWEST_TRACKS else "the tracks agree on no motion"


@dataclass(frozen=True)
class Measurement:
    """The measurement of a video: its `pairs` of keyframes, each compared with `path`, and the measured `camera`."""

    path: CameraPath
    pairs: tuple[Pair, ...]
    camera: VideoCamera

    @cached_property
    def found(self) -> tuple[Pair, ...]:
        """The pairs for which a motion was found."""
        return tuple(pair for pair in self.pairs if pair.found is not None)

    @cached_property
    def judged(self) -> tuple[Pair, ...]:
        """The pairs for which a motion was found, without the ambiguous pairs (see `Pair.fits_both`)."""
        return tuple(pair for pair in self.found if not pair.fits_both)

    @property
    def following(self) -> int:
        """The number of judged pairs of keyframes without a fault."""
        return sum(not pair.fault for pair in self.judged)

    @property
    def follows(self) -> bool | None:
        """The verdict: True if the video follows the path, False if it does not, None if this is undecided.

        It is True if following >= FOLLOWING * len(found). It is None if a motion was found for fewer than half of the
        pairs. It is also None if the ambiguous pairs, which are in `found` but not in `judged`, could change the
        verdict.
        """
        if 2 * len(self.found) < len(self.pairs):
            return None
        least, most = self.following, len(self.found) - len(self.judged) + self.following
        enough = FOLLOWING * len(self.found)
        return True if least >= enough else False if most < enough else None

    @cached_property
    def poses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Three arrays for the m keyframes with a camera: frame numbers [m], the path's poses, and the measured poses.

        Each array of poses is [m, 4, 4] and relative to its first pose. The measured translations are scaled to the
        unit of the path by least squares.
        """
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
        """The RotErr [m] of each frame in `poses`: the angle in degrees between the measured rotation and the path's.

        CamI2V's evaluation/glomap_evaluation.py defines the same angle, but reports the sum over frames in radians.
        """
        _, asked, found = self.poses
        return angle_deg(np.swapaxes(asked[:, :3, :3], 1, 2) @ found[:, :3, :3]) if len(asked) else np.empty(0)

    @cached_property
    def translation_errors(self) -> np.ndarray:
        """The TransErr [m] of each frame in `poses`: the distance in world units between the measured position and the
        path's."""
        _, asked, found = self.poses
        return np.linalg.norm(asked[:, :3, 3] - found[:, :3, 3], axis=1)


def median_errors_deg(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return the median errors of rotation and of direction of motion over `pairs`, in degrees. A median is NaN if no
    pair has a measured error."""
    errors = np.array([(pair.turn_error_deg, pair.direction_error_deg) for pair in pairs]).reshape(-1, 2).T
    turn, direction = (float(np.median(known)) if len(known := each[~np.isnan(each)]) else np.nan for each in errors)
    return turn, direction


def measure_camera(frames: Iterable[np.ndarray], path: CameraPath, every: int | None = None) -> Measurement:
    """Measure how well a video follows `path`, and return the measurement. `frames`: grey frames, uint8 [H, W] each,
    which are read once. Frame i was generated with pose i of the path.

    `every`: the distance in frames between the two keyframes of a pair (None: 8). The lens is the path's first one,
    scaled from an 832x480 image to the frames' size. Raises CameraError for a video of one frame, of more frames than
    poses or with frames of several sizes, and for `every` below 1. Raises DependencyError without OpenCV or pycolmap.
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

    return compare(find_camera(no_more_than_poses(), path.intrinsics[0], every), path, every or EVERY)


def compare(camera: VideoCamera, path: CameraPath, every: int = EVERY) -> Measurement:
    """Compare an estimated camera with a camera path that has at least as many frames, and return the measurement.
    `every`: the distance in frames between the two keyframes of a pair."""
    keys = camera.tracks.frames
    starts = range(0, keys[-1], every)
    chosen = np.unique([np.abs(keys - frame).argmin() for frame in (*starts, keys[-1])])
    ends = zip(chosen[:-1], chosen[1:], strict=True)
    steps = np.linalg.norm(np.diff(path.positions[keys[chosen]], axis=0), axis=1)
    least = max(MOVING * float(steps.max()), stillness(path.c2w))
    return Measurement(path, tuple(_pair(camera, path, first, last, least) for first, last in ends), camera)


def _pair(camera: VideoCamera, path: CameraPath, first: int, last: int, least: float) -> Pair:
    """Return the Pair that compares the video and the path between the keyframes with the indices `first` and `last`.
    The direction of motion is judged if the path's step between them is longer than `least`, in world units."""
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
