"""Estimation of the cameras of keyframes from tracked points, by pycolmap's global mapper (GLOMAP)."""

import signal
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import require
from .tracks import Tracks

REACHES = (1, 2, 3, 4, 6, 8, 12, 16)
"""The distances, counted in keyframes, at which two keyframes are matched."""
FEWEST_SHARED = 20
LEAST_ANGLE_DEG = 0.2
"""The minimum triangulation angle of a point. pycolmap's default of 1 suits photographs, which are farther apart than
video frames."""
ERROR_PX = 1.0
"""The maximum residual of an inlier in two-view RANSAC, in pixels."""


def pycolmap() -> ModuleType:
    """Return the module pycolmap, with its log and its SIGTERM handler disabled. Raises DependencyError if pycolmap is
    missing."""
    module = require("pycolmap")
    module.logging.minloglevel = 3
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return module


def map_cameras(tracks: Tracks, lens: np.ndarray, known: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the keyframes' camera-to-world matrices [k, 4, 4], NaN where no camera was found, and the lens [4]. The
    unit of length is arbitrary.

    lens: fx, fy, cx, cy in pixels of the resized frames (see `Tracks`).
    known: whether the lens is fixed; if not, it is refined.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_database(folder, tracks, lens, known)
        return _run_mapper(folder, len(tracks.frames), lens, known)


def _write_database(folder: Path, tracks: Tracks, lens: np.ndarray, known: bool) -> None:
    colmap = pycolmap()
    database = colmap.Database.open(folder / "points.db")
    seen = ~np.isnan(tracks.points[..., 0])
    seen &= seen.sum(0) > 2
    numbers = np.cumsum(seen, 1) - 1  # the index of each point within its keyframe
    images = _write_images(database, tracks, lens, known)
    for image, points, here in zip(images, tracks.points, seen, strict=True):
        database.write_keypoints(image, points[here].astype(np.float32))
    pairs = [(at, at + reach) for reach in REACHES for at in range(len(images) - reach)]
    shared = [(first, last, seen[first] & seen[last]) for first, last in pairs]
    shared = [pair for pair in shared if pair[2].sum() >= FEWEST_SHARED]
    for first, last, both in shared:
        matches = np.stack([numbers[first, both], numbers[last, both]], 1).astype(np.uint32)
        database.write_matches(images[first], images[last], matches)
    database.close()
    lines = [f"{first:05d} {last:05d}\n" for first, last, _ in shared]
    (folder / "pairs.txt").write_text("".join(lines), encoding="ascii")


def _write_images(database: Any, tracks: Tracks, lens: np.ndarray, known: bool) -> list[int]:
    """Write the keyframes into pycolmap's database, and return the images' ids. If the lens is not `known`, one focal
    length is used for fx and fy."""
    colmap = pycolmap()
    width, height = tracks.size
    model, params = ("PINHOLE", lens) if known else ("SIMPLE_PINHOLE", lens[[0, 2, 3]])
    camera = colmap.Camera(model=model, width=width, height=height, params=list(params))
    camera.has_prior_focal_length = known
    number = database.write_camera(camera)
    rig = colmap.Rig()
    rig.add_ref_sensor(colmap.sensor_t(colmap.SensorType.CAMERA, number))
    rig_number, images = database.write_rig(rig), []
    for index in range(len(tracks.frames)):
        images.append(database.write_image(colmap.Image(name=f"{index:05d}", camera_id=number)))
        frame = colmap.Frame()
        frame.rig_id = rig_number
        frame.add_data_id(database.read_image(images[-1]).data_id)
        database.write_frame(frame)
    return images


def _run_mapper(folder: Path, keyframes: int, lens: np.ndarray, known: bool) -> tuple[np.ndarray, np.ndarray]:
    colmap = pycolmap()
    views = colmap.TwoViewGeometryOptions()
    views.ransac.max_error, views.ransac.random_seed = ERROR_PX, 0
    colmap.verify_matches(folder / "points.db", folder / "pairs.txt", views)
    if not known:
        colmap.calibrate_view_graph(folder / "points.db")
    options = colmap.GlobalPipelineOptions()
    options.random_seed = 0
    mapper = options.mapper
    mapper.bundle_adjustment.refine_focal_length = not known
    mapper.min_tri_angle_deg = mapper.retriangulation.min_angle = LEAST_ANGLE_DEG
    found = colmap.global_mapping(folder / "points.db", folder, folder / "models", options)
    c2w = np.full((keyframes, 4, 4), np.nan)
    if not found:
        return c2w, lens
    model = max(found.values(), key=lambda each: each.num_reg_images())
    for image in model.images.values():
        if image.has_pose:
            c2w[int(image.name)] = np.vstack([image.cam_from_world().inverse().matrix(), [0, 0, 0, 1]])
    params = np.array(next(iter(model.cameras.values())).params)
    return c2w, params if known else params[[0, 0, 1, 2]]
