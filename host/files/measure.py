"""Measurements of a finished video: its estimated camera path, how far it is from the intended path, and its drift in
quality."""

from collections.abc import Iterator

import comfy.model_management
import comfy.utils
import numpy as np
from PIL import Image
from torch import Tensor

from ... import measure
from ...camera.path import CameraPath
from ...measure import drift
from .image import pixels, to_image


def measure_image(
    images: Tensor, path: CameraPath, every: int, size: tuple[int, int]
) -> tuple[Tensor, list[str], list[str]]:
    """Measure how well a video, an IMAGE [F, H, W, 3], follows the camera `path`.

    every: the number of frames between the compared keyframes; 0 means 8.
    size: the (width, height) of the drawing, in pixels.

    Return three values:
    - a drawing as an IMAGE,
    - the lines of a summary,
    - lines with the errors: their means and sums, then a table with one row per pair of keyframes.

    Raises CameraError for fewer than two frames, more than 4,000, or more frames than poses, and for a negative
    `every`. Raises DependencyError without OpenCV or pycolmap.
    """
    measured = measure.measure_camera(_grey(images), path, every or None)
    figures = [measure.error_summary(measured), *measure.table(measured)]
    return to_image(measure.render_measurement(measured, size)), measure.summary(measured), figures


def path_of_video(images: Tensor, fov_deg: float) -> tuple[CameraPath, list[str]]:
    """Return the estimated camera path of a video, an IMAGE [F, H, W, 3], and lines of notes about the estimate.

    `fov_deg` is the horizontal field of view in degrees; 0 means that it is estimated too. Raises CameraError for fewer
    than two frames, more than 4,000, and if the camera is found in fewer than half of the keyframes. Raises
    DependencyError without OpenCV or pycolmap.
    """
    camera = measure.find_camera(_grey(images), fov_deg or None)
    path = measure.video_path(camera)
    return path, measure.camera_messages(camera, path, bool(fov_deg))


def measure_drift(images: Tensor, fps: float, size: tuple[int, int]) -> tuple[Tensor, list[str], list[str]]:
    """Measure how the quality of a video, an IMAGE [F, H, W, 3], drifts over time.

    fps: the video's frames per second, from 0.001 to less than 1000.
    size: the (width, height) of the drawing, in pixels.

    Return three values:
    - a drawing as an IMAGE,
    - a summary: a line for each fault, or one line that no drift was found,
    - the lines of a table: a header, and the mean metrics of each second.

    Raises InputError for fewer than two frames, or another `fps`.
    """
    figures = drift.measure_frames(map(pixels, iterate_frames(images)), fps)
    faults = drift.find_faults(figures)
    return to_image(drift.render_drift(figures, faults, size)), drift.summary(figures, faults), drift.table(figures)


def _grey(images: Tensor) -> Iterator[np.ndarray]:
    return (np.asarray(Image.fromarray(pixels(image)).convert("L")) for image in iterate_frames(images))


def iterate_frames(images: Tensor) -> Iterator[Tensor]:
    """Yield the frames [H, W, 3] of an IMAGE, with a progress bar on the running node. Raises ComfyUI's interrupt
    exception if the user cancels the run."""
    bar = comfy.utils.ProgressBar(len(images))
    for image in images:
        comfy.model_management.throw_exception_if_processing_interrupted()
        yield image
        bar.update(1)
