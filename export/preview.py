"""The preview of a scene for a 3D viewer: one point cloud of the scene's points and of its cameras, which are drawn in
red."""

from typing import NamedTuple

import numpy as np

from ..camera.path import CameraPath
from ..camera.poses import LENS_HEIGHT, LENS_WIDTH
from ..camera.rotation import OPENGL_TO_OPENCV

CAMERAS = 24
"""The largest number of cameras that are drawn in a preview."""
FAR = 4.0
"""The largest distance of a point from the camera path, as a multiple of the points' median distance. Farther points
are not drawn, because a few wrong ones would shrink the scene in a viewer that fits it into a sphere."""
DEPTH, APART = 0.05, 0.06
"""DEPTH is the depth of a drawn camera. APART is the smallest distance between drawn cameras, so that they do not cover
each other. Both are fractions of the radius of a sphere around the points and the path (see `_sphere`)."""
BACK, UP, DOWN_DEG = 0.35, 0.25, 25.0
"""The viewpoint of the preview, relative to the first camera: BACK backward, UP upward, and turned down by DOWN_DEG
degrees. BACK and UP are fractions of the same radius as DEPTH."""
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
"""The edges of a drawn camera as pairs of points: 0 is its centre, and 1 to 4 are the corners of its image."""
ALONG = np.linspace(0, 1, 16)[:, None]
"""The positions of the 16 points that draw an edge of a camera, from 0 to 1 along the edge, [16, 1]."""
RED = (255, 0, 0)


class Preview(NamedTuple):
    """The preview of an exported scene.

    cloud: a binary PLY file of points and cameras, with y up.
    view: the viewpoint, a path of one camera above and behind the first one. It shows the points and the cameras.
    centre: [3], the centre of a sphere around the cloud. ComfyUI's viewer moves it to the origin.
    radius: the radius of this sphere, in the units of the camera path. ComfyUI's viewer scales it to 1.
    """

    cloud: bytes
    view: CameraPath
    centre: np.ndarray
    radius: float


def draw_preview(points: np.ndarray, colours: np.ndarray, path: CameraPath) -> Preview:
    """Return a scene's preview. `points`: [n, 3], with y up. `colours`: uint8 [n, 3]. `path`: the cameras to draw."""
    way = path.c2w[:, :3, 3] @ OPENGL_TO_OPENCV[:3, :3]
    away = np.array([np.linalg.norm(way - point, axis=1).min() for point in points])
    near = away <= FAR * np.median(away)
    points, colours = points[near], colours[near]
    unit = _sphere(np.concatenate([points, way]))[1]
    drawn = [_draw_camera(path.c2w[at], path.intrinsics[at], DEPTH * unit) for at in _choose(way, APART * unit)]
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
    """Return the (centre, radius) of a sphere around the positions `places`, [n, 3]. The centre is the centre of their
    bounding box. The radius is 1 for a single position."""
    centre = (places.min(0) + places.max(0)) / 2
    return centre, float(np.linalg.norm(places - centre, axis=1).max()) or 1.0


def _choose(way: np.ndarray, apart: float) -> list[int]:
    """Return the indices of at most CAMERAS cameras to draw. The first camera is chosen, and then each one at least
    `apart` away from all chosen ones. If too many are chosen, evenly spaced ones remain. `way`, [n, 3]: the cameras'
    positions."""
    chosen = [0]
    for at in range(1, len(way)):
        if np.linalg.norm(way[chosen] - way[at], axis=1).min() >= apart:
            chosen.append(at)
    return [chosen[at] for at in np.unique(np.linspace(0, len(chosen) - 1, CAMERAS).astype(int))]


def _draw_camera(pose: np.ndarray, lens: np.ndarray, depth: float) -> np.ndarray:
    """Return points, [n, 3] with y up, along the edges of a drawn camera. `pose`: camera-to-world [4, 4]. `lens`: fx,
    fy, cx, cy in pixels of an 832x480 image. `depth`: the distance from the camera's centre to its image."""
    sides = np.array([[0, 0], [LENS_WIDTH, 0], [LENS_WIDTH, LENS_HEIGHT], [0, LENS_HEIGHT]])
    corners = np.concatenate([(sides - lens[2:]) / lens[:2], np.ones((4, 1))], 1)
    spots = np.concatenate([np.zeros((1, 3)), depth * corners]) @ pose[:3, :3].T + pose[:3, 3]
    edges = [spots[begin] + ALONG * (spots[end] - spots[begin]) for begin, end in EDGES]
    return np.concatenate(edges) @ OPENGL_TO_OPENCV[:3, :3]
