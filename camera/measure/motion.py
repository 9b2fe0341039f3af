"""How a camera moved between two pictures, from points that were followed: its turn and the direction it went in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..rotation import from_vectors, nearest_rotation, unit
from .tracks import opencv

FEWEST_TRACKS = 20
LEAST_AGREEING = 0.4
"""Share of the tracks that has to agree with one motion; else none can be told."""
NEAR = 1.5
"""Pixels of a picture 832 wide within which a track agrees with a motion."""
LEAST_PARALLAX, LEAST_GAIN = 0.1, 3.0
"""A camera went somewhere if a turn alone leaves that many pixels of the tracks, and that many times what a turn and a
move leave. Noise on the tracks of a camera that only turns gives 2 to 2.6 times."""
FARTHEST_TURN_DEG = 45.0
"""How far the rotation may be from the one that fits the tracks best by itself."""
DRAWS = 200
"""Pairs of tracks of which one begins the search for the rotation."""


class Asked(NamedTuple):
    """A path's motion: the second camera's `rotation` [3, 3] and unit `direction` [3], None where it only turns."""

    rotation: np.ndarray
    direction: np.ndarray | None


@dataclass(frozen=True)
class Motion:
    """The second camera seen from the first: `rotation` [3, 3], and the unit `direction` [3] it went in, None where the
    parallax is too small to tell. `parallax` is what that rotation leaves of the tracks, the median in pixels. `left`
    is what the whole motion leaves of them, `asked_left` what the path's motion does."""

    rotation: np.ndarray
    direction: np.ndarray | None
    parallax: float
    left: float
    asked_left: float


def find_motion(first: np.ndarray, last: np.ndarray, lens: np.ndarray, width: int, asked: Asked) -> Motion | None:
    """The motion that tracks [n, 2] show in a picture `width` wide, through a lens [4] (fx, fy, cx, cy) in pixels.

    The search begins at the path's motion too, which so is found if nothing fits better. None for too few tracks, and
    for tracks of which too few agree.
    """
    if len(first) < FEWEST_TRACKS:
        return None
    focal, share = float(np.sqrt(lens[0] * lens[1])), width / 832
    near = max(NEAR * share, NEAR / 3) / focal
    before, after = (_rays(points, lens) for points in (first, last))
    turned, left = _turn(before, after, near)
    parallax = float(np.median(left)) * focal
    rotation, direction, off = _travel(before, after, (turned, asked), near)
    asked_left = float(np.median(_left_by(before, after, asked))) * focal
    if parallax < LEAST_PARALLAX or np.median(left) < LEAST_GAIN * np.median(off):
        found, off = Motion(turned, None, parallax, parallax, asked_left), left
    else:
        parallax = float(np.median(_apart(before, after, rotation))) * focal
        found = Motion(rotation, direction, parallax, float(np.median(off)) * focal, asked_left)
    return found if np.mean(off < near) >= LEAST_AGREEING else None


def _left_by(before: np.ndarray, after: np.ndarray, asked: Asked) -> np.ndarray:
    """How far each track [n] is off what the path's motion allows, in focal lengths."""
    if asked.direction is None:
        return _apart(before, after, asked.rotation)
    return _misses(before, after, asked.rotation, asked.direction)


def _turn(before: np.ndarray, after: np.ndarray, near: float) -> tuple[np.ndarray, np.ndarray]:
    """The rotation [3, 3] that takes most rays of `after` to those of `before`, and the angle [n] it leaves of each."""
    one, two = unit(before), unit(after)
    draws = np.random.default_rng(0).integers(0, len(one), (DRAWS, 2))
    candidates = nearest_rotation(np.einsum("dki,dkj->dij", *(_with_normal(rays[draws]) for rays in (one, two))))
    left = np.linalg.norm(one - np.einsum("dij,nj->dni", candidates, two), axis=-1)
    rotation = candidates[np.median(left, axis=1).argmin()]
    for _ in range(5):  # each time those that agree best are fitted again
        left = _apart(before, after, rotation)
        kept = left <= max(np.median(left), near)
        rotation = nearest_rotation(one[kept].T @ two[kept])
    return rotation, _apart(before, after, rotation)


def _with_normal(rays: np.ndarray) -> np.ndarray:
    """Pairs of rays [d, 2, 3] with what is perpendicular to both: three that fix a rotation."""
    return np.concatenate([rays, np.cross(rays[:, 0], rays[:, 1])[:, None]], axis=1)


def _travel(
    before: np.ndarray, after: np.ndarray, guesses: tuple[np.ndarray, Asked], near: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rotation, direction and how far each track [n] is off what they allow, by the essential matrix, then refined.

    A flat wall fits two motions, and a move along it looks almost like a turn. So the search begins at several places,
    at the essential matrix, at the motions that a wall would fit and at the `guesses`, the rotation that fits best by
    itself and the path's motion; what fits best is taken and refined further.
    """
    turned, asked = guesses
    way = _direction(before, after, asked.rotation, near) if asked.direction is None else asked.direction
    starts = [(turned, _direction(before, after, turned, near)), (asked.rotation, way)]
    starts += _essential(before, after, near) + _of_a_wall(before, after, near)
    found = [_refined(before, after, *start, near, 5) for start in starts if _turns_alike(start[0], turned)]
    found = [_ahead(before, after, *motion) for motion in found if _turns_alike(motion[0], turned)]
    costs = [_cost(_misses(before, after, *motion), near) for motion in found]
    best = _refined(before, after, *found[int(np.argmin(costs))], near, 20)
    return *best, _misses(before, after, *best)


def _turns_alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two rotations are less than FARTHEST_TURN_DEG apart: an essential matrix fits a half turn as well."""
    return bool(np.trace(one.T @ other) > 1 + 2 * np.cos(np.deg2rad(FARTHEST_TURN_DEG)))


def _essential(before: np.ndarray, after: np.ndarray, near: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rotation and direction of the essential matrix that most tracks agree with; none where five never agree."""
    cv2 = opencv()
    one, two = before[:, :2], after[:, :2]
    matrix, inliers = cv2.findEssentialMat(two, one, np.eye(3), cv2.USAC_MAGSAC, 0.999, near / 2, 1000)
    if matrix is None or matrix.shape != (3, 3):
        return []
    _, rotation, direction, _ = cv2.recoverPose(matrix, two, one, np.eye(3), mask=inliers)
    return [(rotation, direction.reshape(3))]


def _of_a_wall(before: np.ndarray, after: np.ndarray, near: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rotations and directions, two of each sign, that would fit if most tracks were of one wall; none if none fits."""
    cv2 = opencv()
    matrix, _ = cv2.findHomography(after[:, :2], before[:, :2], cv2.USAC_MAGSAC, near, maxIters=1000)
    if matrix is None:
        return []
    _, rotations, ways, _ = cv2.decomposeHomographyMat(matrix, np.eye(3))
    moves = [(rotation, way.reshape(3)) for rotation, way in zip(rotations, ways, strict=True) if way.any()]
    return [(rotation, unit(way)) for rotation, way in moves]


def _direction(before: np.ndarray, after: np.ndarray, rotation: np.ndarray, near: float) -> np.ndarray:
    """The direction that fits best where the rotation is known: perpendicular to what each track spans with it."""
    spanned = np.cross(before, after @ rotation.T)
    spanned /= near + np.linalg.norm(spanned, axis=1, keepdims=True)
    return np.linalg.svd(spanned, full_matrices=False)[2][2]


def _refined(
    before: np.ndarray, after: np.ndarray, rotation: np.ndarray, direction: np.ndarray, near: float, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """The motion near the one given that all tracks fit best (Levenberg, Marquardt); tracks far off count little."""
    off, damping = _off_the_line(before, after, rotation, direction), 1e-3
    for _ in range(rounds):
        across = np.linalg.svd(direction[None])[2][1:]  # two unit vectors perpendicular to the direction
        slope = _slopes(before, after, rotation, direction, across)
        weighted = slope.T / (1 + (off / (near / 4)) ** 2)
        normal = weighted @ slope
        change = np.linalg.lstsq(normal + damping * np.diag(np.diag(normal)), -weighted @ off, rcond=None)[0]
        changed = from_vectors(change[None, :3])[0] @ rotation, unit(direction + change[3:] @ across)
        now = _off_the_line(before, after, *changed)
        better = _cost(now, near) < _cost(off, near)
        damping = max(damping / 10, 1e-9) if better else damping * 10
        if better:
            off, (rotation, direction) = now, changed
    return rotation, direction


def _slopes(
    before: np.ndarray, after: np.ndarray, rotation: np.ndarray, direction: np.ndarray, across: np.ndarray
) -> np.ndarray:
    """How much farther off its line each track gets [n, 5] by a turn about each axis and a step `across` the direction.

    The change of the gradient that the distance is divided by is left out: it is small where tracks are near.
    """
    turns = [_crossing(direction) @ _crossing(axis) @ rotation for axis in np.eye(3)]
    matrices = [*turns, *(_crossing(way) @ rotation for way in across)]
    grown = np.stack([(before * (after @ matrix.T)).sum(1) for matrix in matrices], 1)
    return grown / _steepness(before, after, _crossing(direction) @ rotation)[:, None]


def _cost(off: np.ndarray, near: float) -> float:
    return float(np.log1p((off / (near / 4)) ** 2).sum())


def _off_the_line(before: np.ndarray, after: np.ndarray, rotation: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """How far each track is off its epipolar line (Sampson's distance), signed, in focal lengths."""
    matrix = _crossing(direction) @ rotation
    return (before * (after @ matrix.T)).sum(1) / _steepness(before, after, matrix)


def _steepness(before: np.ndarray, after: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """For each track the length of the gradient of before @ matrix @ after, by the pixels of both pictures."""
    lines, back = after @ matrix.T, before @ matrix
    return np.sqrt((lines[:, :2] ** 2).sum(1) + (back[:, :2] ** 2).sum(1) + 1e-24)


def _crossing(vector: np.ndarray) -> np.ndarray:
    """The matrix [3, 3] whose product with another vector is the cross product."""
    x, y, z = vector
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])


def _misses(before: np.ndarray, after: np.ndarray, rotation: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """How far each track [n] is off what the motion allows, in focal lengths.

    That is its epipolar line from the point at infinity on; a track on the other side, of a point behind the camera, is
    as far off as it is from that point.
    """
    off = np.abs(_off_the_line(before, after, rotation, direction))
    behind = _depths(before, after, rotation, direction) < 0
    return np.where(behind, np.maximum(_apart(before, after, rotation), off), off)


def _apart(before: np.ndarray, after: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    """The angle, small, between the two rays of each track [n] after the rotation."""
    return np.linalg.norm(unit(before) - unit(after) @ rotation.T, axis=1)


def _ahead(
    before: np.ndarray, after: np.ndarray, rotation: np.ndarray, direction: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The motion, its direction turned round where it puts the tracks' points behind the camera."""
    forward = _depths(before, after, rotation, direction).sum() >= 0
    return rotation, direction if forward else -direction


def _depths(before: np.ndarray, after: np.ndarray, rotation: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """For each track [n] a number with the sign of its point's depth in front of the camera; larger for nearer ones."""
    turned = after @ rotation.T  # before * depth is turned * another depth + direction
    return (np.cross(direction, turned) * np.cross(before, turned)).sum(1)


def _rays(points: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """Pixels [n, 2] as rays [n, 3] of depth 1 through a lens [4]."""
    return np.concatenate([(points - lens[2:]) / lens[:2], np.ones((len(points), 1))], axis=1)
