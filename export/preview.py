"""The preview of a scene for a 3D viewer: one point cloud of the scene's points and of its cameras, which are drawn in
red."""

from typing import NamedTuple

import numpy as np

from ..camera.path import CameraPath
from ..camera.poses import LENS_HEIGHT, LENS_WIDTH
from ..camera.rotation import OPENGL_TO_OPENCV

CAMERAS = 24
"""The largest number of cameras that are drawn in a preview."""
DEPTH, BACK = 0.08, 0.75
"""Two lengths, as fractions of the median distance from the first camera to the points. DEPTH: the depth of a drawn
camera. BACK: the distance of the preview's viewpoint behind the first camera."""
EDGES = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1))
"""The edges of a drawn camera as pairs of points: 0 is its centre, and 1 to 4 are the corners of its image."""
ALONG = np.linspace(0, 1, 16)[:, None]
"""The positions, from 0 to 1 along an edge of a drawn camera, of the points that draw the edge, [16, 1]."""
RED = (255, 0, 0)


class Preview(NamedTuple):
    """The preview of an exported scene.

    cloud: a binary PLY file of points and cameras, with y up.
    view: the viewpoint, a single camera at some distance behind the first one, so that the points and the cameras are
    in view.
    centre: [3], the centre of a sphere around the cloud. ComfyUI's viewer moves it to the origin.
    radius: the radius of this sphere, in the units of the camera path. ComfyUI's viewer scales it to 1.
    """

    cloud: bytes
    view: CameraPath
    centre: np.ndarray
    radius: float


def draw_preview(points: np.ndarray, colours: np.ndarray, path: CameraPath) -> Preview:
    """Return a scene's preview. `points`: [n, 3], with y up. `colours`: uint8 [n, 3]. `path`: the cameras to draw."""
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
    """Return points, [n, 3] with y up, along the edges of a drawn camera. `pose`: camera-to-world [4, 4]. `lens`: fx,
    fy, cx, cy in pixels of an 832x480 image. `depth`: the distance from the camera's centre to its image."""
    sides = np.array([[0, 0], [LENS_WIDTH, 0], [LENS_WIDTH, LENS_HEIGHT], [0, LENS_HEIGHT]])
    corners = np.concatenate([(sides - lens[2:]) / lens[:2], np.ones((4, 1))], 1)
    spots = np.concatenate([np.zeros((1, 3)), depth * corners]) @ pose[:3, :3].T + pose[:3, 3]
    edges = [spots[begin] + ALONG * (spots[end] - spots[begin]) for begin, end in EDGES]
    return np.concatenate(edges) @ OPENGL_TO_OPENCV[:3, :3]
