"""Measurements of a video, an IMAGE [F, H, W, 3]: its camera, how well the camera follows a path, and its drift."""

from collections.abc import Iterator

import comfy.model_management
import comfy.utils
import numpy as np
from PIL import Image
from torch import Tensor

from ... import measure
from ...camera.path import CameraPath
from ...measure import drift
from .image import as_image, pixels


def measure_image(
    images: Tensor, path: CameraPath, every: int, size: tuple[int, int]
) -> tuple[Tensor, list[str], list[str]]:
    """Measure how well a video follows a path. The keyframes of a pair are `every` frames apart; 0: the default, 8.
    Raises CameraError.

    Returns a drawing [1, h, w, 3], and the summary and the table as lines of text."""
    measured = measure.measure_camera(_grey(images), path, every or None)
    figures = [measure.error_words(measured), *measure.table(measured)]
    return as_image(measure.render_measurement(measured, size)), measure.summary(measured), figures


def path_of_video(images: Tensor, fov_deg: float) -> tuple[CameraPath, list[str]]:
    """Return the camera of a video as a path, and notes about it. With `fov_deg` 0 the lens is estimated. Raises
    CameraError."""
    camera = measure.find_camera(_grey(images), fov_deg or None)
    path = measure.video_path(camera)
    return path, measure.found_words(camera, path, bool(fov_deg))


def measure_drift(images: Tensor, fps: float, size: tuple[int, int]) -> tuple[Tensor, list[str], list[str]]:
    """Measure a video over time. Raises InputError.

    Returns a drawing [1, h, w, 3], and the faults and the table as lines of text."""
    figures = drift.measure_frames(map(pixels, one_by_one(images)), fps)
    faults = drift.find_faults(figures)
    return as_image(drift.render_drift(figures, faults, size)), drift.words(figures, faults), drift.table(figures)


def _grey(images: Tensor) -> Iterator[np.ndarray]:
    return (np.asarray(Image.fromarray(pixels(image)).convert("L")) for image in one_by_one(images))


def one_by_one(images: Tensor) -> Iterator[Tensor]:
    """Yield the frames, and show their number as progress on the running node. ComfyUI's interrupt ends the work at the
    next frame."""
    bar = comfy.utils.ProgressBar(len(images))
    for image in images:
        comfy.model_management.throw_exception_if_processing_interrupted()
        yield image
        bar.update(1)
