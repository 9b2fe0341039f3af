"""The preview of a scene for a 3D viewer: a point cloud with the cameras in red."""

from typing import NamedTuple

import numpy as np

from ..camera.path import CameraPath
from ..camera.poses import LENS_HEIGHT, LENS_WIDTH
from ..camera.rotation import OPENGL_TO_OPENCV

CAMERAS = 24
"""At most this many cameras are drawn, evenly spaced."""
FAR = 4.0
"""A point is drawn if its distance from the nearest camera is at most this multiple of the points' median distance."""
DEPTH, CAMERA_DISTANCE = 0.05, 0.06
"""DEPTH is the distance of a drawn camera's image plane from the camera's centre, CAMERA_DISTANCE the minimum distance
between two drawn cameras. Both are fractions of the scene's radius."""
BACK, UP, DOWN_DEG = 0.35, 0.25, 25.0
"""The viewpoint relative to the first camera: backward and upward, as fractions of the scene's radius, and downward
pitch in degrees."""
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
"""The edges of a drawn camera between its centre 0 and the corners 1 to 4 of its image."""
ALONG = np.linspace(0, 1, 16)[:, None]
"""The points drawn along an edge, as fractions of its length, [16, 1]."""
RED = (255, 0, 0)


class Preview(NamedTuple):
    """The preview of an exported scene for a 3D viewer.

    cloud: the bytes of a binary PLY file of points and cameras, in OpenGL axes (y up).
    view: the viewer's initial camera, as a path of one pose in OpenCV axes (y down).
    centre, radius: a sphere around the cloud; the centre is [3], in OpenGL axes.
    """

    cloud: bytes
    view: CameraPath
    centre: np.ndarray
    radius: float


def draw_preview(points: np.ndarray, colours: np.ndarray, path: CameraPath) -> Preview:
    """Return the preview of a scene for a 3D viewer.

    points: [n, 3], in OpenGL axes (y up), as in the exported PLY file.
    colours: the points' RGB values, uint8 [n, 3].
    path: the scene's cameras, in OpenCV axes (y down).
    """
    way = path.c2w[:, :3, 3] @ OPENGL_TO_OPENCV[:3, :3]
    away = np.array([np.linalg.norm(way - point, axis=1).min() for point in points])
    near = away <= FAR * np.median(away)
    points, colours = points[near], colours[near]
    unit = _sphere(np.concatenate([points, way]))[1]
    drawn = [
        _draw_camera(path.c2w[at], path.intrinsics[at], DEPTH * unit) for at in _choose(way, CAMERA_DISTANCE * unit)
    ]
    places = np.concatenate([points, *drawn]).astype(np.float32)
    rows = np.zeros(len(places), [("place", "<f4", 3), ("colour", "u1", 3)])
    rows["place"], rows["colour"] = places, RED
    rows["colour"][: len(colours)] = colours
    names = [
        *(f"property float {axis}" for axis in "xyz"),
        *(f"property uchar {name}" for name in ("red", "green", "blue")),
    ]
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}", *names, "end_header", ""]
    above = path.c2w[:1].copy()
    above[:, :3, 3] -= unit * (BACK * above[:, :3, 2] + UP * above[:, :3, 1])
    down = np.deg2rad(-DOWN_DEG)
    above[:, :3, :3] = above[:, :3, :3] @ [[1, 0, 0], [0, np.cos(down), -np.sin(down)], [0, np.sin(down), np.cos(down)]]
    return Preview("\n".join(head).encode() + rows.tobytes(), CameraPath(above, path.intrinsics[:1]), *_sphere(places))


def _sphere(places: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the centre of the bounding box of positions [n, 3], and the largest distance from the centre. A distance
    of 0 becomes 1."""
    centre = (places.min(0) + places.max(0)) / 2
    return centre, float(np.linalg.norm(places - centre, axis=1).max()) or 1.0


def _choose(way: np.ndarray, apart: float) -> list[int]:
    chosen = [0]
    for at in range(1, len(way)):
        if np.linalg.norm(way[chosen] - way[at], axis=1).min() >= apart:
            chosen.append(at)
    return [chosen[at] for at in np.unique(np.linspace(0, len(chosen) - 1, CAMERAS).astype(int))]


def _draw_camera(pose: np.ndarray, lens: np.ndarray, depth: float) -> np.ndarray:
    """Return points [n, 3] along the edges of a camera's frustum, in OpenGL axes (y up). `pose`: [4, 4],
    camera-to-world, in OpenCV axes. `lens`: fx, fy, cx, cy at 832x480. `depth`: the distance of the image plane from
    the camera centre."""
    sides = np.array([[0, 0], [LENS_WIDTH, 0], [LENS_WIDTH, LENS_HEIGHT], [0, LENS_HEIGHT]])
    corners = np.concatenate([(sides - lens[2:]) / lens[:2], np.ones((4, 1))], 1)
    spots = np.concatenate([np.zeros((1, 3)), depth * corners]) @ pose[:3, :3].T + pose[:3, 3]
    edges = [spots[begin] + ALONG * (spots[end] - spots[begin]) for begin, end in EDGES]
    return np.concatenate(edges) @ OPENGL_TO_OPENCV[:3, :3]
