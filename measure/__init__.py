"""Measurement of finished videos: how well the camera follows a path (`measurement`), how the look drifts (`drift`)."""

from .found import VideoCamera, find_camera, video_path
from .mapping import pycolmap
from .measurement import Measurement, Pair, measure_camera
from .picture import render_measurement
from .tracks import opencv
from .words import as_values, error_words, found_words, summary, table

__all__ = [
    "Measurement",
    "Pair",
    "VideoCamera",
    "as_values",
    "error_words",
    "find_camera",
    "found_words",
    "measure_camera",
    "opencv",
    "pycolmap",
    "render_measurement",
    "summary",
    "table",
    "video_path",
]
