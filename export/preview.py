"""The preview of a scene for a 3D viewer: a point cloud with the scene's points, and with its cameras in red."""

from typing import NamedTuple

import numpy as np

from ..camera.path import CameraPath
from ..camera.poses import LENS_HEIGHT, LENS_WIDTH
from ..camera.rotation import OPENGL_TO_OPENCV

CAMERAS = 24
"""At most this many cameras are drawn. If more are far enough apart to be drawn, this many of them, evenly spaced, are
drawn."""
FAR = 4.0
"""A point is drawn only if its distance from the nearest camera is at most this multiple of the median of such
distances. Otherwise a few wrong points would shrink the scene in a viewer that fits it into a sphere."""
DEPTH, CAMERA_DISTANCE = 0.05, 0.06
"""The size of the drawn cameras, as fractions of the radius from `_sphere`.

DEPTH: the distance from a camera's centre to its drawn image.
CAMERA_DISTANCE: two drawn cameras are at least this far apart, so that they do not cover each other.
"""
BACK, UP, DOWN_DEG = 0.35, 0.25, 25.0
"""The viewpoint relative to the first camera: BACK backward and UP upward, as fractions of the radius from `_sphere`,
pitched down by DOWN_DEG degrees."""
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
"""The edges of a drawn camera as pairs of points: its centre 0, and the corners 1 to 4 of its image."""
ALONG = np.linspace(0, 1, 16)[:, None]
"""The positions along an edge at which points are drawn, as fractions from 0 to 1 of the edge's length, [16, 1]."""
RED = (255, 0, 0)


class Preview(NamedTuple):
    """The preview of an exported scene.

    cloud: a binary PLY file of points and cameras, with y up.
    view: the viewpoint, a CameraPath with one pose, above and behind the scene's first camera.
    centre, radius: the centre [3] and the radius of a sphere around the cloud. ComfyUI's viewer moves the centre to the
    origin and scales the radius to 1.
    """

    cloud: bytes
    view: CameraPath
    centre: np.ndarray
    radius: float


def draw_preview(points: np.ndarray, colours: np.ndarray, path: CameraPath) -> Preview:
    """Return a scene's preview.

    points: [n, 3], with y up.
    colours: uint8 [n, 3], the RGB colours of the points.
    path: the scene's cameras, in OpenCV axes with y down.
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
    """Return the centre of the bounding box of positions [n, 3], and a radius: the distance from this centre to the
    farthest position. If all positions are equal, the radius is 1."""
    centre = (places.min(0) + places.max(0)) / 2
    return centre, float(np.linalg.norm(places - centre, axis=1).max()) or 1.0


def _choose(way: np.ndarray, apart: float) -> list[int]:
    """Return the indices of the cameras to draw: the first camera, and each camera that is at least `apart` from all
    cameras chosen before. If more than CAMERAS are chosen, CAMERAS of them are returned, evenly spaced. `way` [n, 3]:
    the positions of all cameras."""
    chosen = [0]
    for at in range(1, len(way)):
        if np.linalg.norm(way[chosen] - way[at], axis=1).min() >= apart:
            chosen.append(at)
    return [chosen[at] for at in np.unique(np.linspace(0, len(chosen) - 1, CAMERAS).astype(int))]


def _draw_camera(pose: np.ndarray, lens: np.ndarray, depth: float) -> np.ndarray:
    """Return points, [n, 3] with y up, along the edges of a drawn camera with a camera-to-world `pose`. `depth`: the
    distance of the camera's image from its centre."""
    sides = np.array([[0, 0], [LENS_WIDTH, 0], [LENS_WIDTH, LENS_HEIGHT], [0, LENS_HEIGHT]])
    corners = np.concatenate([(sides - lens[2:]) / lens[:2], np.ones((4, 1))], 1)
    spots = np.concatenate([np.zeros((1, 3)), depth * corners]) @ pose[:3, :3].T + pose[:3, 3]
    edges = [spots[begin] + ALONG * (spots[end] - spots[begin]) for begin, end in EDGES]
    return np.concatenate(edges) @ OPENGL_TO_OPENCV[:3, :3]
