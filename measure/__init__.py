"""Measurement of finished videos: how well the camera follows a path, and how the look drifts."""

from .chart import render_measurement
from .mapping import pycolmap
from .measurement import Measurement, Pair, measure_camera
from .report import as_values, camera_messages, error_summary, summary, table
from .tracks import opencv
from .video_camera import VideoCamera, find_camera, video_path

__all__ = [
    "Measurement",
    "Pair",
    "VideoCamera",
    "as_values",
    "camera_messages",
    "error_summary",
    "find_camera",
    "measure_camera",
    "opencv",
    "pycolmap",
    "render_measurement",
    "summary",
    "table",
    "video_path",
]
