"""The export of a video and its camera path as a scene for 3D programs, into ComfyUI's output folder."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import folder_paths
from comfy_api.latest import Types
from comfy_execution.graph_utils import ExecutionBlocker
from torch import Tensor

from ...camera.moves.keyframes import load3d_camera
from ...camera.path import CameraPath
from ...errors import InputError
from ...export import Exported, Points, add_points, check_points, export_scene
from .image import pixels
from .measure import iterate_frames
from .names import split_path


def check_export(prefix: str, points: bool, format: str) -> None:
    """Raise InputError if an export with these settings is impossible, or DependencyError if a package is missing."""
    split_path(prefix, "export", "output folder")
    if points or format == "ply":
        check_points(points)


def export_images(
    images: Tensor, camera: CameraPath, format: str, every: int, points: bool, prefix: str
) -> tuple[str, Any, dict[str, Any], list[str]]:
    """Export the video `images`, [F, H, W, 3], and its camera path into a new folder. Raise InputError for an invalid
    `prefix`, DependencyError if a package is missing.

    format: the scene's format, "nerfstudio", "colmap" or "ply".
    every: the interval between exported frames.
    points: whether 3D points are computed from the frames.
    prefix: the beginning of the folder's name, relative to ComfyUI's output folder.

    Return the folder, a FILE_3D (an ExecutionBlocker without 3D points), a LOAD3D_CAMERA, and the lines of a report.
    """
    check_export(prefix, points, format)
    root, name, counter, _, _ = folder_paths.get_save_image_path(prefix, folder_paths.get_output_directory())
    folder = Path(root) / f"{name}_{counter:05}_"
    frames = map(pixels, iterate_frames(images))
    made = export_scene(frames, camera.c2w, camera.intrinsics, folder, format, every=every)
    found, report = _points(made, camera.fps) if points else (None, [])
    lines = [f"{len(made.frames)} of {made.read} frames, {made.blurred} left out as blurred: {folder}", *report]
    if found is None:
        return str(folder), ExecutionBlocker(None), load3d_camera(made.path), lines
    shown = found.preview
    view = load3d_camera(shown.view, 0, shown.centre, shown.radius)
    return str(folder), Types.File3D(BytesIO(shown.cloud), "ply"), view, lines


def _points(made: Exported, fps: float) -> tuple[Points | None, list[str]]:
    try:
        found = add_points(made, fps)
    except InputError as reason:
        if made.format == "ply":
            raise
        return None, [f"no points: {reason}"]
    return found, found.report()
