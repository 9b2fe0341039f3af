"""The preview of an export in a 3D viewer: its points, and its cameras drawn in red, as one point cloud."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..camera.path import CameraPath
from ..camera.poses import LENS_HEIGHT, LENS_WIDTH
from ..camera.rotation import OPENGL_TO_OPENCV

CAMERAS = 24
"""The largest number of cameras that are drawn."""
DEPTH, BACK = 0.08, 0.75
"""The depth of a drawn camera, and the distance of the view behind the first camera, as fractions of the median
distance from the first camera to the points."""
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
"""The edges of a drawn camera, between its centre, 0, and the corners of its image."""
ALONG = np.linspace(0, 1, 16)[:, None]
"""The places of an edge's points."""
RED = (255, 0, 0)


class Preview(NamedTuple):
    """A binary PLY file of points and cameras, with y up, and a `view` of them from behind the first camera. `centre`
    [3] and `radius` are the bounding sphere that ComfyUI's viewer moves to the origin and scales to 1."""

    cloud: bytes
    view: CameraPath
    centre: np.ndarray
    radius: float


def draw_preview(points: np.ndarray, colours: np.ndarray, path: CameraPath) -> Preview:
    """Return the preview of points [n, 3] with y up, with `colours` uint8 [n, 3], and of a path's cameras."""
    away = np.linalg.norm(points - OPENGL_TO_OPENCV[:3, :3] @ path.c2w[0, :3, 3], axis=1)
    unit, chosen = float(np.median(away)), np.unique(np.linspace(0, len(path) - 1, CAMERAS).astype(int))
    drawn = [_draw_camera(path.c2w[at], path.intrinsics[at], DEPTH * unit) for at in chosen]
    places = np.concatenate([points, *drawn]).astype(np.float32)
    rows = np.zeros(len(places), [("place", "<f4", 3), ("colour", "u1", 3)])
    rows["place"], rows["colour"] = places, RED
    rows["colour"][: len(colours)] = colours
    names = [
        *(f"property float {axis}" for axis in "xyz"),
        *(f"property uchar {name}" for name in ("red", "green", "blue")),
    ]
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}", *names, "end_header", ""]
    centre = (places.min(0) + places.max(0)) / 2
    radius = float(np.linalg.norm(places - centre, axis=1).max()) or 1.0
    behind = path.c2w[:1].copy()
    behind[:, :3, 3] -= BACK * unit * behind[:, :3, 2]
    view = CameraPath(behind, path.intrinsics[:1])
    return Preview("\n".join(head).encode() + rows.tobytes(), view, centre, radius)


def _draw_camera(pose: np.ndarray, lens: np.ndarray, depth: float) -> np.ndarray:
    """Return points [n, 3], with y up, on the edges from a camera to the corners of its image at `depth`."""
    sides = np.array([[0, 0], [LENS_WIDTH, 0], [LENS_WIDTH, LENS_HEIGHT], [0, LENS_HEIGHT]])
    corners = np.concatenate([(sides - lens[2:]) / lens[:2], np.ones((4, 1))], 1)
    spots = np.concatenate([np.zeros((1, 3)), depth * corners]) @ pose[:3, :3].T + pose[:3, 3]
    edges = [spots[begin] + ALONG * (spots[end] - spots[begin]) for begin, end in EDGES]
    return np.concatenate(edges) @ OPENGL_TO_OPENCV[:3, :3]
