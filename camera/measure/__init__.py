"""How well a video follows a camera path: tracks, motions between keyframes, a verdict, words and a picture."""

from .measurement import Measurement, Pair, measure_camera
from .picture import render_measurement
from .tracks import opencv
from .words import as_values, floor_words, summary, table

__all__ = [
    "Measurement",
    "Pair",
    "as_values",
    "floor_words",
    "measure_camera",
    "opencv",
    "render_measurement",
    "summary",
    "table",
]
