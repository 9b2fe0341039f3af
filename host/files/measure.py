"""Measurements of a finished video: its camera path, the distance from the intended path, and its drift in quality."""

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
    """Measure how well a video, an IMAGE [F, H, W, 3], follows the camera path. Return a drawing as an IMAGE, a
    summary's lines, and the lines of a table of errors.

    every: the interval between keyframes in frames; 0 selects 8.
    size: the (width, height) of the drawing in pixels.

    Raise CameraError if the video cannot be measured.
    """
    measured = measure.measure_camera(_grey(images), path, every or None)
    figures = [measure.error_summary(measured), *measure.table(measured)]
    return to_image(measure.render_measurement(measured, size)), measure.summary(measured), figures


def path_of_video(images: Tensor, fov_deg: float) -> tuple[CameraPath, list[str]]:
    """Return the estimated camera path of a video, an IMAGE [F, H, W, 3], and notes. `fov_deg` is 0 if unknown. Raise
    CameraError if the estimate fails."""
    camera = measure.find_camera(_grey(images), fov_deg or None)
    return measure.video_path(camera), measure.camera_messages(camera, bool(fov_deg))


def measure_drift(images: Tensor, fps: float, size: tuple[int, int]) -> tuple[Tensor, list[str], list[str]]:
    """Measure how the quality of a video, an IMAGE [F, H, W, 3], drifts over time. Return a drawing as an IMAGE, the
    lines of a summary, and the lines of a table."""
    figures = drift.measure_frames(map(pixels, iterate_frames(images)), fps)
    faults = drift.find_faults(figures)
    return to_image(drift.render_drift(figures, faults, size)), drift.summary(figures, faults), drift.table(figures)


def _grey(images: Tensor) -> Iterator[np.ndarray]:
    return (np.asarray(Image.fromarray(pixels(image)).convert("L")) for image in iterate_frames(images))


def iterate_frames(images: Tensor) -> Iterator[Tensor]:
    """Yield the frames [H, W, 3] of an IMAGE, with a progress bar. Raise ComfyUI's exception if the user cancels."""
    bar = comfy.utils.ProgressBar(len(images))
    for image in images:
        comfy.model_management.throw_exception_if_processing_interrupted()
        yield image
        bar.update(1)
