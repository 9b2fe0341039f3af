"""Measurement of finished videos: how well a video's camera follows a path (`measurement`), and how its look drifts
over time (`drift`)."""

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
