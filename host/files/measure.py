"""What a video, an IMAGE [F, H, W, 3], shows: its camera, how well that follows a path, and whether it falls apart."""

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
    """How well a video follows a path: a drawing [1, h, w, 3], the summary and the table, lines of words. Keyframes are
    `every` frames apart, 0: chosen by the path. Raises CameraError."""
    measured = measure.measure_camera(_grey(images), path, every or None)
    figures = [measure.error_words(measured), *measure.table(measured)]
    return as_image(measure.render_measurement(measured, size)), measure.summary(measured), figures


def path_of_video(images: Tensor, fov_deg: float) -> tuple[CameraPath, list[str]]:
    """The camera of a video as a path, and what to know of it. `fov_deg` 0: the lens is found. Raises CameraError."""
    camera = measure.find_camera(_grey(images), fov_deg or None)
    path = measure.video_path(camera)
    return path, measure.found_words(camera, path, bool(fov_deg))


def measure_drift(images: Tensor, fps: float, size: tuple[int, int]) -> tuple[Tensor, list[str], list[str]]:
    """A video over time: a drawing [1, h, w, 3], the faults in words and the table, lines of words. Raises
    InputError."""
    figures = drift.measure_frames(map(pixels, _one_by_one(images)), fps)
    faults = drift.find_faults(figures)
    return as_image(drift.render_drift(figures, faults, size)), drift.words(figures, faults), drift.table(figures)


def _grey(images: Tensor) -> Iterator[np.ndarray]:
    return (np.asarray(Image.fromarray(pixels(image)).convert("L")) for image in _one_by_one(images))


def _one_by_one(images: Tensor) -> Iterator[Tensor]:
    """The frames, with their number as progress on the running node. ComfyUI's interrupt ends the work at the next."""
    bar = comfy.utils.ProgressBar(len(images))
    for image in images:
        comfy.model_management.throw_exception_if_processing_interrupted()
        yield image
        bar.update(1)
