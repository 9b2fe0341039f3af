"""Estimation of a video's camera, by fitted rotations if the camera only rotates, else by the mapper."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..camera.path import DEFAULT_FOV_DEG, CameraPath, lens_from_fov
from ..camera.plucker import longest_step, scaled_lens
from ..camera.poses import LENS_HEIGHT, LENS_WIDTH
from ..camera.rotation import interpolate, inverse, nearest_rotation, unit
from ..errors import CameraError
from .mapping import ERROR_PX, map_cameras, pycolmap
from .tracks import SHORTER_SIDE, Tracks, opencv, resize, track_points

STRIDE, FEWEST_KEYFRAMES, MOST_KEYFRAMES = 4, 9, 160
"""The default distance between keyframes in frames, and the minimum and maximum numbers of keyframes. The distance
adapts to stay within these limits."""
MOST_FRAMES = 4000
FEWEST_TRACKS = 20
LEAST_INLIERS = 0.4
"""The minimum fraction of tracked points that must fit a rotation between adjacent keyframes to accept it."""
PAIR_DISTANCE, LEAST_PARALLAX = 4, 0.75  # on known clips at most 0.5 for rotations, 1.4 or more for moving cameras
"""The test of whether a camera also translates. It fits rotations between keyframes that are PAIR_DISTANCE keyframes
apart. The camera translates if the median of the fits' residuals exceeds LEAST_PARALLAX pixels."""
MIN_ERROR_RATIO = 3.0  # noise on a pure rotation gives 2 to 2.6
"""A camera translates if rotations alone have a fit error of at least MIN_ERROR_RATIO times the fit error of motions
with translation."""
FOCALS, LEAST_TURN_DEG = (0.3, 3.0), 10.0
"""The conditions under which a lens estimated from the video is used.

FOCALS: the minimum and the maximum focal length, in image widths.
LEAST_TURN_DEG: the minimum turn of the camera, in degrees.
"""
ON_A_PLANE = 0.9
"""The scene counts as flat if more than this fraction of the tracked points lies on one plane."""
LENS_PAIRS = 6
"""The maximum number of keyframe pairs used to estimate the lens of a rotating camera."""
DRAWS = 200
"""The number of random pairs of tracked points from which candidate rotations are computed."""


@dataclass(frozen=True)
class VideoCamera:
    """The camera of a video, measured at k keyframes.

    c2w: [k, 4, 4], in an arbitrary unit of length; NaN if not found.
    moves: whether the camera does more than rotate.
    lens: [4], fx, fy, cx, cy in pixels of the resized frames, in which the points were tracked.
    height, width: the size of the original video in pixels.
    lens_found: whether the lens was estimated from the video.
    """

    c2w: np.ndarray
    moves: bool
    lens: np.ndarray
    tracks: Tracks
    frames: int
    height: int
    width: int
    lens_found: bool = False

    @property
    def registered(self) -> np.ndarray:
        """A mask [k] of the keyframes for which a camera was found."""
        return ~np.isnan(self.c2w[:, 0, 0])

    @property
    def focal(self) -> float:
        return float(np.sqrt(self.lens[0] * self.lens[1]))

    @property
    def fov_deg(self) -> float:
        """The horizontal field of view, in degrees."""
        return float(np.rad2deg(2 * np.arctan(self.tracks.size[0] / 2 / self.lens[0])))

    @property
    def turned_deg(self) -> float:
        """The largest angle, in degrees, between the viewing directions of the first camera and any other."""
        views = self.c2w[self.registered, :3, 2]
        return float(np.rad2deg(np.arccos(np.clip((views @ views[0]).min(), -1, 1)))) if len(views) else 0.0

    def parallax(self, first: int, last: int) -> float:
        """Return the parallax between two keyframes in pixels: the points' third-quartile residual under the estimated
        rotation alone."""
        turn = np.eye(4)
        turn[:3, :3] = self.c2w[first, :3, :3].T @ self.c2w[last, :3, :3]
        return self.residual(first, last, turn, 0.75)

    def residual(self, first: int, last: int, motion: np.ndarray, share: float = 0.5) -> float:
        """Return the points' residual in pixels at the quantile `share`. `motion` [4, 4] is the pose of `last` relative
        to `first`."""
        before, after = _shared_rays(self.tracks, self.lens, first, last)
        if not motion[:3, 3].any():
            return float(np.quantile(_ray_angles(before, after, motion[:3, :3]), share)) * self.focal
        normals = np.cross(motion[:3, 3], after @ motion[:3, :3].T)
        normals /= np.linalg.norm(normals, axis=1, keepdims=True) + 1e-12
        return float(np.quantile(np.abs((before * normals).sum(1)), share)) * self.focal

    @property
    def flat(self) -> bool:
        """Whether the camera moves and most points lie on one plane, so that the motion is ambiguous."""
        apart, shares = min(PAIR_DISTANCE, len(self.c2w) - 1), []
        for first in range(0, len(self.c2w) - apart, 4):
            before, after = self.tracks.points[[first, first + apart]][:, self.tracks.shared(first, first + apart)]
            agree = None
            if len(before) >= FEWEST_TRACKS:
                _, agree = opencv().findHomography(before, after, opencv().RANSAC, ERROR_PX / 2 * self.tracks.upscaling)
            shares.append(0.0 if agree is None else float(agree.mean()))
        return self.moves and bool(np.median(shares) > ON_A_PLANE)

    def fit_error(self) -> float:
        """Return how badly the measured poses fit the tracked points, in pixels. Each pair of keyframes PAIR_DISTANCE
        apart gives the third quartile of its points' residuals. The result is the median over the pairs, or infinity
        without enough points."""
        known = self.registered
        apart = min(PAIR_DISTANCE, len(known) - 1)
        pairs = [(first, first + apart) for first in range(len(known) - apart)]
        pairs = [pair for pair in pairs if known[list(pair)].all() and self.tracks.shared(*pair).sum() >= FEWEST_TRACKS]
        left = [self.residual(*pair, inverse(self.c2w[pair[0]]) @ self.c2w[pair[1]], 0.75) for pair in pairs]
        return float(np.median(left)) if left else np.inf


def find_camera(
    frames: Iterable[np.ndarray], lens: np.ndarray | float | None = None, stride: int | None = None
) -> VideoCamera:
    """Return the camera of a video, estimated from grey frames, uint8 [H, W]. Raises CameraError for an invalid video,
    DependencyError without OpenCV or pycolmap.

    lens: fx, fy, cx, cy in pixels of an 832x480 image, or the horizontal field of view in degrees; None: estimated.
    stride: the minimum number of frames from one keyframe to the next; None: chosen by the video's length.
    """
    opencv(), pycolmap()
    pictures, (height, width) = _resize_all(frames)
    stride = stride or max(min(STRIDE, (len(pictures) - 1) // (FEWEST_KEYFRAMES - 1)), 1)
    tracks = track_points(pictures, max(stride, -(-len(pictures) // MOST_KEYFRAMES)))
    tracks = replace(tracks, upscaling=max(1.0, SHORTER_SIDE / min(height, width)))
    if isinstance(lens, np.ndarray):
        pixels = scaled_lens(lens, tracks.size[1], tracks.size[0])
    else:
        focal = lens_from_fov(DEFAULT_FOV_DEG if lens is None else lens)[0] * tracks.size[0] / LENS_WIDTH
        pixels = np.array([focal, focal, tracks.size[0] / 2, tracks.size[1] / 2])
    found = VideoCamera(np.empty(0), False, pixels, tracks, len(pictures), height, width)
    turned = _fit_rotating(found, lens is None)
    if not turned.moves:
        return turned
    if lens is None:
        c2w, own = map_cameras(tracks, found.lens, known=False)
        mapped = replace(found, c2w=c2w, lens=own, moves=True, lens_found=True)
        plausible = FOCALS[0] < own[0] / tracks.size[0] < FOCALS[1] and mapped.registered.all()
        if plausible and mapped.turned_deg >= LEAST_TURN_DEG:
            return mapped
    mapped = replace(turned, c2w=map_cameras(tracks, found.lens, known=True)[0], moves=True)
    return turned if turned.registered.all() and mapped.fit_error() > turned.fit_error() / MIN_ERROR_RATIO else mapped


def _fit_rotating(camera: VideoCamera, any_lens: bool) -> VideoCamera:
    """Return `camera` with fitted rotations and, if `any_lens`, a fitted lens. The result's `moves` is True if
    rotations alone fit the points badly."""
    c2w, moves = _chain_rotations(camera.tracks, camera.lens)
    turned = replace(camera, c2w=c2w, moves=moves)
    if not any_lens:
        return turned
    lens = _fit_lens(camera.tracks, camera.lens)
    c2w, moves = _chain_rotations(camera.tracks, lens)
    other = replace(camera, c2w=c2w, moves=moves, lens=lens, lens_found=True)
    return turned if moves or other.turned_deg < LEAST_TURN_DEG else other


def _fit_lens(tracks: Tracks, lens: np.ndarray) -> np.ndarray:
    from scipy.optimize import minimize_scalar  # slow to import

    apart = min(PAIR_DISTANCE, len(tracks.frames) - 1)
    firsts = np.unique(np.linspace(0, len(tracks.frames) - 1 - apart, LENS_PAIRS).round().astype(int))

    def with_focal(log_focal: float) -> np.ndarray:
        return np.array([np.exp(log_focal), np.exp(log_focal), *lens[2:]])

    def mean_residual(log_focal: float) -> float:
        found = [_fit_rotation(tracks, with_focal(log_focal), first, first + apart) for first in firsts]
        return float(np.mean([np.median(each[1]) for each in found if each] or [0.0])) * float(np.exp(log_focal))

    bounds = np.log(np.array(FOCALS) * tracks.size[0])
    return with_focal(minimize_scalar(mean_residual, bounds=bounds, method="bounded", options={"xatol": 0.005}).x)


def _resize_all(frames: Iterable[np.ndarray]) -> tuple[list[np.ndarray], tuple[int, int]]:
    pictures: list[np.ndarray] = []
    shape: tuple[int, int] | None = None
    for number, frame in enumerate(frames):
        if shape not in (None, frame.shape):
            sizes = [f"{each[1]}x{each[0]}" for each in (frame.shape, shape)]
            raise CameraError(f"frame {number} is {sizes[0]}, the one before {sizes[1]}: expected one size")
        if number == MOST_FRAMES:
            raise CameraError(f"the video has more than {MOST_FRAMES} frames: give a part of it")
        shape = frame.shape[0], frame.shape[1]
        pictures.append(resize(frame))
    if len(pictures) < 2:
        raise CameraError(f"a video of {len(pictures)} frames: expected at least 2")
    assert shape is not None  # there was a frame
    return pictures, shape


def _chain_rotations(tracks: Tracks, lens: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the camera-to-world matrices [k, 4, 4] of a rotating camera, NaN after a failed fit, and whether the
    camera also moves."""
    focal = float(np.sqrt(lens[0] * lens[1]))
    c2w = np.full((len(tracks.frames), 4, 4), np.nan)
    c2w[0] = np.eye(4)
    for number in range(1, len(c2w)):
        found = _fit_rotation(tracks, lens, number - 1, number)
        if found is None or np.mean(found[1] * focal < ERROR_PX * tracks.upscaling) < LEAST_INLIERS:
            c2w[0] = np.nan if number == 1 else c2w[0]
            break
        c2w[number] = c2w[number - 1]
        c2w[number, :3, :3] = c2w[number - 1, :3, :3] @ found[0]
    apart = min(PAIR_DISTANCE, len(c2w) - 1)
    far = [_fit_rotation(tracks, lens, first, first + apart) for first in range(len(c2w) - apart)]
    left = [np.quantile(found[1], 0.75) * focal for found in far if found is not None]
    return c2w, not left or float(np.median(left)) > LEAST_PARALLAX * tracks.upscaling**0.5


def _fit_rotation(tracks: Tracks, lens: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the rotation [3, 3] from `last` to `first` (LMedS) and the residual angles [n], or None without enough
    points."""
    one, two = _shared_rays(tracks, lens, first, last)
    if len(one) < FEWEST_TRACKS:
        return None
    draws = np.random.default_rng(0).integers(0, len(one), (DRAWS, 2))
    drawn = (rays[draws] for rays in (one, two))  # two rays and their cross product determine a rotation
    three = (np.concatenate([pair, np.cross(pair[:, 0], pair[:, 1])[:, None]], axis=1) for pair in drawn)
    candidates = nearest_rotation(np.einsum("dki,dkj->dij", *three))
    left = np.linalg.norm(one - np.einsum("dij,nj->dni", candidates, two), axis=-1)
    rotation = candidates[np.median(left, axis=1).argmin()]
    for _ in range(5):  # refit to the half that agrees best
        left = _ray_angles(one, two, rotation)
        kept = left <= np.median(left)
        rotation = nearest_rotation(one[kept].T @ two[kept])
    return rotation, _ray_angles(one, two, rotation)


def _ray_angles(before: np.ndarray, after: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """Return the angles [n], in radians, between the unit rays `before` and the rotated unit rays `after`, by the
    small-angle approximation."""
    return np.linalg.norm(before - after @ rotation.T, axis=1)


def _shared_rays(tracks: Tracks, lens: np.ndarray, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit rays [n, 3] to the points visible in both keyframes, in the axes of each camera."""
    points = tracks.points[:, tracks.shared(first, last)]
    ahead = np.ones((points.shape[1], 1))
    before, after = (unit(np.concatenate([(points[at] - lens[2:]) / lens[:2], ahead], 1)) for at in (first, last))
    return before, after


def video_path(found: VideoCamera) -> CameraPath:
    """Return a video's measured camera as a camera path with one pose per frame. Raises CameraError if fewer than half
    of the keyframes have a measured camera."""
    known = found.registered
    if known.mean() < 0.5:
        raise CameraError(
            f"the camera was found in {known.sum()} of {len(known)} keyframes: the video shows too little that stays, "
            "is too soft or is cut; give a part of it with more texture"
        )
    at = np.interp(np.arange(found.frames), found.tracks.frames[known], np.arange(known.sum()))
    c2w = interpolate(found.c2w[known], at)
    lens = found.lens * (np.array([LENS_WIDTH, LENS_HEIGHT] * 2) / np.array(found.tracks.size * 2))
    path = CameraPath(c2w, lens).relative()
    longest = longest_step(path.c2w, frames=len(path))
    return path.scaled(1 / longest) if longest else path
