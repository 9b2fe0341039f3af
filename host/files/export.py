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
from .names import parts_of


def check_export(prefix: str, points: bool, format: str) -> None:
    """Raise an error if an export with these settings is impossible.

    InputError: `prefix` leads out of the output folder.
    InputError: `format` is "ply", but `points` is False.
    DependencyError: `points` is True, but pycolmap or OpenCV is missing.
    """
    parts_of(prefix, "export", "output folder")
    if points or format == "ply":
        check_points(no_points=not points)


def export_images(
    images: Tensor, camera: CameraPath, format: str, every: int, points: bool, prefix: str
) -> tuple[str, Any, dict[str, Any], list[str]]:
    """Export a video and its camera path into a new numbered folder of ComfyUI's output folder.

    images: the video, an IMAGE [F, H, W, 3].
    camera: the camera path, with one pose per frame.
    format: the scene format, such as "ply".
    every: the interval between exported frames, in frames.
    points: True to compute 3D points from the frames.
    prefix: the beginning of the folder's name.

    Return four values:
    - the path of the folder,
    - a FILE_3D of points and cameras; without points an ExecutionBlocker, which stops the connected nodes,
    - a LOAD3D_CAMERA: a view from above and behind the first camera; without points the first camera itself,
    - the lines of a report.

    ComfyUI's viewer moves and scales a point cloud; the view with points is moved and scaled in the same way.

    Raises the errors of `check_export`, and InputError:
    - if the video has no frames, or another number of frames than the path has poses,
    - if the frames cannot be written,
    - for the format "ply", if no points are found.
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
