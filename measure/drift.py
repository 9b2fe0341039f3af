"""Measurement of a video's drift: metrics of each frame, faults found in the metrics, a chart and a table."""

from .drift_faults import Fault, find_faults
from .drift_figures import Figures, measure_frames
from .drift_report import as_values, render_drift, table, words

__all__ = ["Fault", "Figures", "as_values", "find_faults", "measure_frames", "render_drift", "table", "words"]
