"""Sparse coloured points of a scene: corners are tracked through frames and triangulated by pycolmap with fixed
poses."""

import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..camera.formats.colmap import write_colmap
from ..camera.formats.json_files import write_transforms
from ..camera.rotation import OPENGL_TO_OPENCV
from ..errors import InputError
from ..measure.mapping import pycolmap
from ..measure.tracks import opencv, resize, track_points
from ..typed import check_types
from .preview import Preview, draw_preview
from .scene import IMAGES, MODEL, PLY, Exported

LEAST_ANGLE_DEG = 0.5
"""A point with a triangulation angle below this is dropped."""
PAIR_DISTANCES = (1, 2, 4, 8)
"""Two frames are matched if the distance between them, counted in exported frames, is one of these."""
FEWEST_VIEWS = 3
TRACKED_AT_ONCE = 240
"""The maximum number of exported frames through which points are tracked at a time. This limits memory."""


@dataclass(frozen=True)
class Second:
    """One second of the video: how well its tracked points fit the camera poses.

    error: the mean reprojection error in pixels; NaN without triangulated points.
    inlier_share: the fraction of keypoints that belong to a triangulated point.
    points: the number of visible triangulated points.
    """

    second: int
    error: float
    inlier_share: float
    points: int


@dataclass(frozen=True)
class Points:
    """The sparse 3D points of a scene.

    error: the mean reprojection error in pixels.
    seconds: the error in pixels, inliers and visible points in each second of the video.
    cloud: the bytes of a PLY file in OpenGL axes: x right, y up, z backward.
    """

    count: int
    error: float
    seconds: tuple[Second, ...]
    cloud: bytes
    preview: Preview

    def report(self) -> list[str]:
        """Return lines of text: the number of points, the mean error, and a row of figures for each second of the
        video."""
        rows = [f"{each.second:6} {each.error:9.2f} {each.inlier_share:9.0%} {each.points:8}" for each in self.seconds]
        return [
            f"{self.count} points; mean reprojection error {self.error:.2f} pixels",
            f"{'second':>6} {'error px':>9} {'agreeing':>9} {'points':>8}",
            *(row.replace("nan", "  -") for row in rows),
        ]


def check_points(points: bool = True) -> None:
    """Check that a point cloud can be exported. Raise InputError if the user has disabled points (`points` is False),
    and DependencyError if pycolmap or OpenCV is missing."""
    if not points:
        raise InputError("`no_points`: a point cloud has nothing else; leave this out, or choose another `format`")
    pycolmap(), opencv()


def add_points(made: Exported, fps: float) -> Points:
    """Triangulate the points of an exported scene, write them in the scene's format, and return them. For "ply", a
    point cloud only, the frames' PNG files are then deleted.

    fps: the frame rate of the video, for `Points.seconds`.

    Raises InputError if no point can be triangulated, and DependencyError without pycolmap or OpenCV.
    """
    check_types({"fps": fps}, {"fps": float})
    if not 0 < fps < math.inf:
        raise InputError(f"`fps` {fps}: expected frames per second, more than 0")
    check_points()
    try:
        return _add_points(made, fps)
    finally:
        if made.format == "ply":
            shutil.rmtree(made.folder / IMAGES)


def _add_points(made: Exported, fps: float) -> Points:
    colmap = pycolmap()
    with tempfile.TemporaryDirectory() as name:
        model, tracked = _triangulate(made, Path(name))
        if not model.num_points3D():
            raise InputError(
                "no point can be triangulated: the camera stands or only rotates, or the frames show too little that "
                "stays; export a part of the walk in which the camera moves"
            )
        model.update_point_3d_errors()
        found = model.num_points3D(), model.compute_mean_reprojection_error(), _by_second(made, tracked, model, fps)
        if made.format == "colmap":
            model.write_text(made.folder / MODEL)
        elif made.format == "nerfstudio":
            model.export_PLY(made.folder / PLY)
            write_transforms(made.path, made.folder / "transforms.json", names=made.files, size=made.size, points=PLY)
        model.transform(colmap.Sim3d(1.0, colmap.Rotation3d(OPENGL_TO_OPENCV[:3, :3]), np.zeros(3)))
        model.export_PLY(Path(name) / PLY)
        cloud = (Path(name) / PLY).read_bytes()
    if made.format == "ply":
        (made.folder / PLY).write_bytes(cloud)
    points = [*model.points3D.values()]
    places, colours = np.array([point.xyz for point in points]), np.array([point.color for point in points])
    return Points(*found, cloud, draw_preview(places, colours, made.path))


def _triangulate(made: Exported, folder: Path) -> tuple[Any, np.ndarray]:
    """Triangulate with temporary files in `folder`. Return pycolmap's reconstruction, and the number of tracked points
    per frame, int [n]."""
    colmap = pycolmap()
    write_colmap(made.path, folder, [Path(file).name for file in made.files], made.size)
    model = colmap.Reconstruction(folder)
    database = colmap.Database.open(folder / "points.db")
    _write_scene(database, model)
    tracked = [_write_tracks(database, made, first) for first in range(0, len(made.files), TRACKED_AT_ONCE)]
    database.close()
    options = colmap.IncrementalPipelineOptions()
    options.random_seed = 0
    options.triangulation.min_angle = options.mapper.filter_min_tri_angle = LEAST_ANGLE_DEG
    model = colmap.triangulate_points(
        model, folder / "points.db", made.folder / IMAGES, folder, clear_points=True, options=options
    )
    return model, np.concatenate(tracked)


def _write_scene(database: Any, model: Any) -> None:
    for camera in model.cameras.values():
        database.write_camera(camera, use_camera_id=True)
    for rig in model.rigs.values():
        database.write_rig(rig, use_rig_id=True)
    for frame in model.frames.values():
        database.write_frame(frame, use_frame_id=True)
    for image in model.images.values():
        database.write_image(image, use_image_id=True)


def _write_tracks(database: Any, made: Exported, begin: int) -> np.ndarray:
    """Track points through TRACKED_AT_ONCE exported frames from index `begin`. Write their keypoints and matches, and
    return the number of points per frame, int [n]."""
    greys = (Image.open(made.folder / file).convert("L") for file in made.files[begin : begin + TRACKED_AT_ONCE])
    tracks = track_points([resize(np.array(grey)) for grey in greys], 1)
    seen = ~np.isnan(tracks.points[..., 0])
    seen &= seen.sum(0) >= FEWEST_VIEWS
    scale = np.array(made.size[::-1]) / tracks.size
    for at, (points, here) in enumerate(zip(tracks.points, seen, strict=True), begin + 1):
        database.write_keypoints(at, (points[here] * scale).astype(np.float32))
    for apart in PAIR_DISTANCES:
        for first in range(len(seen) - apart):
            _write_pair(database, (begin + first + 1, begin + first + apart + 1), seen[[first, first + apart]])
    return seen.sum(1)


def _write_pair(database: Any, images: tuple[int, int], seen: np.ndarray) -> None:
    colmap, both = pycolmap(), seen.all(0)
    numbers = np.cumsum(seen, 1) - 1  # the index of each point within its image
    matches = numbers[:, both].T.astype(np.uint32)
    if len(matches):
        geometry = colmap.TwoViewGeometry()
        geometry.config = colmap.TwoViewGeometryConfiguration.CALIBRATED
        geometry.inlier_matches = matches
        database.write_matches(*images, matches)
        database.write_two_view_geometry(*images, geometry)


def _by_second(made: Exported, counts: np.ndarray, model: Any, fps: float) -> tuple[Second, ...]:
    seconds = (np.array(made.frames) / fps).astype(int)
    errors: list[list[float]] = [[] for _ in range(seconds[-1] + 1)]
    inlier_share = np.zeros(len(errors), int)
    tracked = np.bincount(seconds, counts, len(errors))
    seen: list[set[int]] = [set() for _ in errors]
    for number, image in model.images.items():
        second = seconds[number - 1]
        for spot in image.get_observation_points2D():
            point = model.points3D[spot.point3D_id]
            found = image.project_point(point.xyz)
            errors[second].append(float(np.linalg.norm(found - spot.xy)))
            inlier_share[second] += point.track.length() >= FEWEST_VIEWS
            seen[second].add(spot.point3D_id)
    means = [float(np.mean(each)) if each else float("nan") for each in errors]
    shares = (inlier_share / np.maximum(tracked, 1)).tolist()
    return tuple(Second(at, means[at], shares[at], len(seen[at])) for at in range(len(errors)))
