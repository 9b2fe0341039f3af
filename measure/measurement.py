"""Measurement of how well a video follows a camera path, by the motion between pairs of keyframes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..camera.path import CameraPath
from ..camera.plucker import still_tolerance
from ..camera.rotation import angle_deg, inverse, rigid, unit
from ..errors import CameraError
from .video_camera import FEWEST_TRACKS, VideoCamera, find_camera

EVERY = 8
"""The default distance, in frames, between the two keyframes of a pair."""
MIN_STEP = 0.25
"""The minimum translation of the path in a keyframe pair whose direction of motion is judged, as a fraction of the
longest translation in any pair."""
TURN_DEG, TURN_SHARE, DIRECTION_DEG = 1.0, 1 / 3, 30.0
"""The limits of the measured motion's errors between two keyframes. A larger error is a fault.

TURN_DEG, TURN_SHARE: the rotation error's limit, in degrees, is max(TURN_DEG, TURN_SHARE * the path's rotation).
DIRECTION_DEG: the limit, in degrees, for the direction of motion.
"""
ROTATION_PARALLAX, ROTATION_SHARE = 0.5, 0.25
"""Two terms of the parallax limit between two keyframes where the path only rotates. The limit is the larger of
ROTATION_PARALLAX, in pixels, and ROTATION_SHARE * rotation in radians * focal length in pixels."""
AMBIGUOUS_RATIO = 3.0
"""The maximum ratio of the tracked points' residual under the path's motion to their residual under the measured
motion. Up to this ratio, the path's motion explains the points about as well."""
MIN_FAULTLESS = 0.75
"""A video follows its path if at least this fraction of its measured pairs has no fault."""


@dataclass(frozen=True)
class Pair:
    """The camera's motion between two keyframes, compared with the path's. Pixels are those of the resized frames (see
    `Tracks`).

    first, last: the frame numbers of the keyframes.
    path_motion: [4, 4], the path's pose of `last` relative to `first`.
    path_moves: whether the path moves enough to judge the direction.
    tracks: the number of points visible in both frames.
    found: [4, 4], the measured relative pose; None if not found.
    parallax: the measured parallax in pixels; 0 without `found`.
    residual, path_residual: the points' median residuals under both motions, in pixels.
    """

    first: int
    last: int
    path_motion: np.ndarray
    path_moves: bool
    tracks: int
    found: np.ndarray | None
    parallax: float
    focal: float
    residual: float
    path_residual: float

    @property
    def turn_asked_deg(self) -> float:
        return float(angle_deg(self.path_motion[None, :3, :3])[0])

    @property
    def turn_found_deg(self) -> float:
        """The angle of the measured rotation, in degrees; NaN if no motion was found."""
        return np.nan if self.found is None else float(angle_deg(self.found[None, :3, :3])[0])

    @property
    def turn_error_deg(self) -> float:
        """The angle between the measured rotation and the path's, in degrees; NaN if no motion was found."""
        if self.found is None:
            return np.nan
        return float(angle_deg((self.path_motion[:3, :3].T @ self.found[:3, :3])[None])[0])

    @property
    def direction_error_deg(self) -> float:
        """The angle between the measured and the path's direction of motion, in degrees; NaN if one of them has no
        direction."""
        if not self.path_moves or self.found is None or not self.found[:3, 3].any():
            return np.nan
        cosine = unit(self.path_motion[:3, 3]) @ unit(self.found[:3, 3])
        return float(np.rad2deg(np.arccos(np.clip(cosine, -1, 1))))

    @property
    def fault(self) -> str:
        """A message on how the measured motion differs from the path's; empty if they agree or no motion was found."""
        if self.found is None:
            return ""
        if self.turn_error_deg > max(TURN_DEG, TURN_SHARE * self.turn_asked_deg):
            return "turns otherwise"
        if not self.path_moves:
            turn = np.deg2rad(self.turn_asked_deg) * self.focal
            unasked = self.found[:3, 3].any() and self.parallax > max(ROTATION_PARALLAX, ROTATION_SHARE * turn)
            return "moves, and is not to" if unasked else ""
        if not self.found[:3, 3].any():
            return "no parallax: the camera stands still, or everything is far away"
        return "goes elsewhere" if self.direction_error_deg > DIRECTION_DEG else ""

    @property
    def ambiguous(self) -> bool:
        """Whether the pair has a fault, but the path's motion explains the tracked points almost as well as the
        measured motion does."""
        if not self.fault or self.found is None or (self.path_moves and not self.found[:3, 3].any()):
            return False  # the points of a still camera fit every direction
        return self.path_residual <= AMBIGUOUS_RATIO * self.residual and not self.direction_error_deg > 90

    @property
    def note(self) -> str:
        """A message with the pair's fault, or why the pair was not judged; empty if the pair was judged and has no
        fault."""
        if self.found is not None:
            return "undecided: the path fits the tracks about as well" if self.ambiguous else self.fault
        few = f"fewer than {FEWEST_TRACKS} tracks"
        return few if self.tracks < FEWEST_TRACKS else "the tracks agree on no motion"


@dataclass(frozen=True)
class Measurement:
    """The comparison of a video's measured `camera` with a camera `path`, in `pairs` of keyframes."""

    path: CameraPath
    pairs: tuple[Pair, ...]
    camera: VideoCamera

    @cached_property
    def found(self) -> tuple[Pair, ...]:
        """The pairs for which a motion was found."""
        return tuple(pair for pair in self.pairs if pair.found is not None)

    @cached_property
    def judged(self) -> tuple[Pair, ...]:
        """The pairs for which a motion was found, without the ambiguous ones."""
        return tuple(pair for pair in self.found if not pair.ambiguous)

    @property
    def following(self) -> int:
        """The number of keyframe pairs with a measured motion that follows the path, not counting ambiguous
        measurements."""
        return sum(not pair.fault for pair in self.judged)

    @property
    def follows(self) -> bool | None:
        """Whether the video follows its path. None if most keyframe pairs have no measured motion, or if ambiguous
        pairs could change the answer."""
        if 2 * len(self.found) < len(self.pairs):
            return None
        least, most = self.following, len(self.found) - len(self.judged) + self.following
        enough = MIN_FAULTLESS * len(self.found)
        return True if least >= enough else False if most < enough else None

    @cached_property
    def poses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The poses of the m keyframes for which a camera was found: frame numbers [m], the path's poses [m, 4, 4] and
        the measured poses [m, 4, 4]. Poses are relative to the first of these keyframes. Measured translations are
        scaled to the path's unit."""
        known = self.camera.registered
        frames = self.camera.tracks.frames[known]
        if not len(frames):
            return frames, np.empty((0, 4, 4)), np.empty((0, 4, 4))
        wanted, found = (inverse(c2w[0]) @ c2w for c2w in (self.path.c2w[frames], self.camera.c2w[known]))
        length = float((found[:, :3, 3] ** 2).sum())
        found[:, :3, 3] *= max(float((wanted[:, :3, 3] * found[:, :3, 3]).sum()), 0.0) / length if length else 1.0
        return frames, wanted, found

    @cached_property
    def rotation_errors_deg(self) -> np.ndarray:
        """The angles [m] in degrees between measured and path's rotations, at the m keyframes with a measured pose."""
        _, wanted, found = self.poses
        return angle_deg(np.swapaxes(wanted[:, :3, :3], 1, 2) @ found[:, :3, :3]) if len(wanted) else np.empty(0)

    @cached_property
    def translation_errors(self) -> np.ndarray:
        """The distances between measured and expected camera positions, an array of shape [m] for the m keyframes whose
        pose was measured. Their unit is the path's, to which the measured positions are scaled."""
        _, wanted, found = self.poses
        return np.linalg.norm(wanted[:, :3, 3] - found[:, :3, 3], axis=1)


def median_errors_deg(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return the pairs' median rotation error and median direction error, in degrees; NaN without values."""
    errors = np.array([(pair.turn_error_deg, pair.direction_error_deg) for pair in pairs]).reshape(-1, 2).T
    turn, direction = (float(np.median(known)) if len(known := each[~np.isnan(each)]) else np.nan for each in errors)
    return turn, direction


def measure_camera(frames: Iterable[np.ndarray], path: CameraPath, every: int | None = None) -> Measurement:
    """Return a comparison of a video's camera with `path`, by the motion between pairs of keyframes. Raises CameraError
    for an invalid video or more frames than poses, DependencyError without OpenCV or pycolmap.

    frames: grey, uint8 [H, W]; frame i belongs to pose i.
    every: the distance in frames between the two keyframes of a pair; None: the default, EVERY.
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
    """Return the comparison of an estimated camera with a path, which has a pose for every frame. `every` is the
    distance in frames between paired keyframes."""
    keys = camera.tracks.frames
    starts = range(0, keys[-1], every)
    chosen = np.unique([np.abs(keys - frame).argmin() for frame in (*starts, keys[-1])])
    ends = zip(chosen[:-1], chosen[1:], strict=True)
    steps = np.linalg.norm(np.diff(path.positions[keys[chosen]], axis=0), axis=1)
    least = max(MIN_STEP * float(steps.max()), still_tolerance(path.c2w))
    return Measurement(path, tuple(_pair(camera, path, first, last, least) for first, last in ends), camera)


def _pair(camera: VideoCamera, path: CameraPath, first: int, last: int, least: float) -> Pair:
    """Return the comparison of the video's and the path's motion between two keyframes.

    first, last: the indices of the keyframes in `camera`.
    least: the path's translation, in its unit, above which the direction of motion is judged.
    """
    frames = camera.tracks.frames
    path_motion = inverse(path.c2w[frames[first]]) @ path.c2w[frames[last]]
    path_moves = bool(np.linalg.norm(path_motion[:3, 3]) > least)
    tracks = int(camera.tracks.shared(first, last).sum())
    found, figures = None, (0.0, camera.focal, 0.0, 0.0)
    if tracks and camera.registered[[first, last]].all():
        found = inverse(camera.c2w[first]) @ camera.c2w[last]
        wanted = path_motion if path_moves else rigid(path_motion[:3, :3], np.zeros((1, 3)))[0]
        left = [camera.residual(first, last, motion) for motion in (found, wanted)]
        figures = camera.parallax(first, last), camera.focal, left[0], left[1]
    return Pair(int(frames[first]), int(frames[last]), path_motion, path_moves, tracks, found, *figures)
